// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/account/bucket_choices.h"

#include <cmath>

#include <fmt/format.h>

#include "comm/gradients/bucket_plan.h"
#include "core/text/units.h"

namespace lockstep {
namespace {

// Two digits, so that people can read and type it.
double rounded(double mib) {
  const double unit = std::pow(10, std::floor(std::log10(mib)) - 1);
  return std::round(mib / unit) * unit;
}

BucketChoice choice_of(std::span<const Parameter> parameters, DType weight_type, int ranks, double first,
                       double middle, double last) {
  const auto bytes = [](double mib) { return static_cast<std::size_t>(mib * kMiB); };
  const BucketPlan plan(
      parameters, {.first_bytes = bytes(first), .middle_bytes = bytes(middle), .last_bytes = bytes(last)},
      ranks);
  BucketChoice choice{.value = fmt::format("[{:.3g}, {:.3g}, {:.3g}]", first, middle, last)};
  for (const Bucket& bucket : plan.buckets())
    choice.bucket_bytes.push_back(static_cast<double>(bucket.sent_bytes(weight_type)));
  return choice;
}

}  // namespace

std::vector<BucketChoice> bucket_choices(std::span<const Parameter> parameters, DType weight_type,
                                         int ranks) {
  std::vector<BucketChoice> choices;
  if (parameters.empty()) return choices;
  const double all = in_mib(BucketPlan(parameters, {}, ranks).bytes());
  for (const double middle_share : {2, 3, 4, 6, 8, 12, 16, 32}) {
    for (const double first_share : {1, 4}) {
      for (const double last_share : {1, 4, 16}) {
        const double middle = all / middle_share;
        choices.push_back(choice_of(parameters, weight_type, ranks, rounded(middle / first_share),
                                    rounded(middle), rounded(middle / last_share)));
      }
    }
  }
  return choices;
}

}  // namespace lockstep
