// SPDX-License-Identifier: Apache-2.0
#include "comm/gradients/bucket_order.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Order = std::vector<std::size_t>;

// Five buckets in backward's order: forward needs the last one first.
std::vector<BucketTimes> five(double seconds_between, double wire_seconds) {
  std::vector<BucketTimes> buckets;
  for (std::size_t i = 0; i < 5; ++i) {
    buckets.push_back({.final_seconds = static_cast<double>(i) * seconds_between,
                       .wire_seconds = wire_seconds,
                       .needed = 4 - i});
  }
  return buckets;
}

TEST(BucketOrder, IsBackwardOrderOnAFastWire) {
  EXPECT_EQ(order_by_need(five(2, 1)), (Order{0, 1, 2, 3, 4}));
}

// All other buckets become final while the first is on the wire.
TEST(BucketOrder, IsForwardOrderAfterTheFirstBucketOnASlowWire) {
  EXPECT_EQ(order_by_need(five(1, 10)), (Order{0, 4, 3, 2, 1}));
}

TEST(BucketOrder, SendsTheFinalBucketThatForwardNeedsFirst) {
  EXPECT_EQ(order_by_need(five(2, 3)), (Order{0, 1, 3, 4, 2}));
  // The bucket numbers do not matter.
  const std::vector<BucketTimes> buckets = {{.final_seconds = 1, .wire_seconds = 1, .needed = 2},
                                            {.final_seconds = 0, .wire_seconds = 1, .needed = 7},
                                            {.final_seconds = 1, .wire_seconds = 5, .needed = 1}};
  EXPECT_EQ(order_by_need(buckets), (Order{1, 2, 0}));
  EXPECT_EQ(order_by_need({}), Order());
}

// Forward's end, with sums in this order and the compute after each: no other order of five is better.
TEST(BucketOrder, NoOtherOrderEndsForwardEarlier) {
  const auto forward_ends = [](const std::vector<BucketTimes>& buckets, const Order& order) {
    constexpr double kLayer = 1;
    double wire = 0;
    std::vector<double> there(buckets.size());
    for (const std::size_t bucket : order) {
      wire = std::max(wire, buckets[bucket].final_seconds) + buckets[bucket].wire_seconds;
      there[buckets[bucket].needed] = wire;
    }
    double now = 0;
    for (const double each : there) now = std::max(now, each) + kLayer;
    return now;
  };
  for (const double wire : {0.5, 1.5, 3.0, 8.0}) {
    const std::vector<BucketTimes> buckets = five(1, wire);
    const double found = forward_ends(buckets, order_by_need(buckets));
    Order order = {0, 1, 2, 3, 4};
    do {
      EXPECT_LE(found, forward_ends(buckets, order) + 1e-9) << wire;
    } while (std::ranges::next_permutation(order).found);
  }
}

}  // namespace
}  // namespace lockstep
