// SPDX-License-Identifier: Apache-2.0
#include "comm/gradients/bucket_order.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace lockstep {

std::vector<std::size_t> order_by_need(std::span<const BucketTimes> buckets) {
  std::vector<std::size_t> left(buckets.size()), order;
  std::iota(left.begin(), left.end(), std::size_t{0});
  double now = 0;
  while (!left.empty()) {
    double first_final = std::numeric_limits<double>::infinity();
    for (const std::size_t bucket : left) first_final = std::min(first_final, buckets[bucket].final_seconds);
    now = std::max(now, first_final);
    const auto is_final = [&](std::size_t bucket) { return buckets[bucket].final_seconds <= now; };
    auto next = std::ranges::find_if(left, is_final);
    for (auto each = next; each != left.end(); ++each)
      if (is_final(*each) && buckets[*each].needed < buckets[*next].needed) next = each;
    now += buckets[*next].wire_seconds;
    order.push_back(*next);
    left.erase(next);
  }
  return order;
}

}  // namespace lockstep
