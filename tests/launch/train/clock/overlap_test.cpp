// SPDX-License-Identifier: Apache-2.0
#include "launch/train/clock/overlap.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace lockstep {
namespace {

TEST(Overlap, SingleBucketIsFullyExposed) {
  const BucketInBackward bucket{.final_seconds = 2, .sum_seconds = 3, .lost_share = 0.5};
  const OverlappedBackward backward = overlap_backward({&bucket, 1}, 2);
  EXPECT_DOUBLE_EQ(backward.seconds, 2);
  EXPECT_DOUBLE_EQ(backward.exposed_seconds, 3);
}

TEST(Overlap, FastLinkHidesAllButTheLastBucket) {
  const BucketInBackward buckets[] = {{1, 0.5}, {2, 0.5}, {3, 0.5}, {4, 0.25}};
  const OverlappedBackward backward = overlap_backward(buckets, 4);
  EXPECT_DOUBLE_EQ(backward.seconds, 4);
  EXPECT_DOUBLE_EQ(backward.exposed_seconds, 0.25);
}

TEST(Overlap, SlowLinkQueuesSums) {
  const BucketInBackward buckets[] = {{1, 5}, {2, 5}, {4, 5}};
  EXPECT_DOUBLE_EQ(overlap_backward(buckets, 4).exposed_seconds, 1 + 3 * 5 - 4);
}

// From second 1 a sum runs for 2 seconds, in which half of compute's speed is lost.
TEST(Overlap, SumsSlowDownCompute) {
  const BucketInBackward bucket{.final_seconds = 1, .sum_seconds = 2, .lost_share = 0.5};
  const OverlappedBackward hidden = overlap_backward({&bucket, 1}, 4);
  EXPECT_DOUBLE_EQ(hidden.seconds, 5);
  EXPECT_DOUBLE_EQ(hidden.exposed_seconds, 0);
  const OverlappedBackward exposed = overlap_backward({&bucket, 1}, 1.5);
  EXPECT_DOUBLE_EQ(exposed.seconds, 2);
  EXPECT_DOUBLE_EQ(exposed.exposed_seconds, 1);
}

// Seconds 0 to 2 do 1 s of compute, 2 to 6, beside the queued sum, 1 s, and 6 to 7 the last one. The second
// bucket is final after half a second of compute.
TEST(Overlap, EachSumTakesItsOwnShareOfCompute) {
  const BucketInBackward buckets[] = {{0, 2, 0.5}, {0.5, 4, 0.75}};
  const OverlappedBackward backward = overlap_backward(buckets, 3);
  EXPECT_DOUBLE_EQ(backward.seconds, 7);
  EXPECT_DOUBLE_EQ(backward.exposed_seconds, 0);
  EXPECT_DOUBLE_EQ(overlap_backward(buckets, 1.5).seconds, 4);
  EXPECT_DOUBLE_EQ(overlap_backward(buckets, 1.5).exposed_seconds, 2);
  const BucketInBackward all{.final_seconds = 0, .sum_seconds = 1, .lost_share = 1};
  EXPECT_THROW(overlap_backward({&all, 1}, 1), Error);
}

// The first sum takes 2 seconds, or 4 beside compute: 3 quarters are done when backward ends. The next one is
// completely exposed.
TEST(Overlap, ComputeMaySlowDownSums) {
  const BucketInBackward buckets[] = {{.final_seconds = 0, .sum_seconds = 2, .beside_seconds = 4},
                                      {.final_seconds = 1, .sum_seconds = 1, .beside_seconds = 5}};
  EXPECT_DOUBLE_EQ(overlap_backward(buckets, 3).exposed_seconds, 0.25 * 2 + 1);
  EXPECT_DOUBLE_EQ(overlap_backward(buckets, 9).exposed_seconds, 0);
}

// A bucket cannot be sent before the previous one, even if its gradients are final earlier.
TEST(GradientArrivals, AreLinearBetweenBucketsAndNeverEarlierForMoreBytes) {
  GradientArrivals arrivals;
  EXPECT_EQ(arrivals.final_seconds(5), 0) << "no arrival is known";
  arrivals.add(10, 2);
  arrivals.add(20, 1);
  arrivals.add(20, 4);
  EXPECT_DOUBLE_EQ(arrivals.final_seconds(0), 0);
  EXPECT_DOUBLE_EQ(arrivals.final_seconds(5), 1);
  EXPECT_DOUBLE_EQ(arrivals.final_seconds(15), 2);
  EXPECT_DOUBLE_EQ(arrivals.final_seconds(30), 4) << "after the last known arrival";
  EXPECT_THROW(arrivals.add(19, 5), Error);
}

}  // namespace
}  // namespace lockstep
