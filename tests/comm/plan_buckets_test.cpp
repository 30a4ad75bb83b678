// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include <gtest/gtest.h>

#include "comm/buckets.h"
#include "core/error.h"
#include "tests/comm/bucket_parameters.h"

namespace lockstep {
namespace {

// How many parameters each bucket holds; capacities in elements.
std::vector<std::size_t> plan(std::initializer_list<std::int64_t> sizes, std::size_t first,
                              std::size_t middle, std::size_t last) {
  const std::vector<Parameter> parameters = parameters_of(sizes);
  const std::vector<Bucket> buckets = plan_buckets(
      parameters, {.first_bytes = 4 * first, .middle_bytes = 4 * middle, .last_bytes = 4 * last});
  std::vector<std::size_t> counts;
  std::size_t next = 0;
  std::int64_t end = parameters.empty() ? 0 : parameters.front().offset;
  for (const Bucket& bucket : buckets) {
    EXPECT_EQ(bucket.first_parameter, next);
    EXPECT_EQ(bucket.begin, end);
    EXPECT_EQ(bucket.begin, parameters[bucket.first_parameter].offset);
    EXPECT_EQ(bucket.bytes(), static_cast<std::size_t>(bucket.end - bucket.begin) * 4);
    counts.push_back(bucket.last_parameter - bucket.first_parameter);
    next = bucket.last_parameter;
    end = bucket.end;
  }
  EXPECT_EQ(next, parameters.size());
  return counts;
}

using Counts = std::vector<std::size_t>;

TEST(PlanBuckets, ClosesABucketWhenItReachesItsCapacity) {
  EXPECT_EQ(plan({64, 64, 64, 64, 64, 64, 64, 64, 64, 64}, 64, 256, 64), (Counts{1, 4, 4, 1}));
  EXPECT_EQ(plan({64, 64, 64, 64, 64, 64, 64, 64, 64, 64}, 65, 192, 128), (Counts{2, 3, 3, 2}));
}

TEST(PlanBuckets, WhatIsLeftBeforeTheLastBucketIsABucket) {
  EXPECT_EQ(plan({64, 64, 64, 64, 64, 64}, 64, 256, 64), (Counts{1, 4, 1}));
  EXPECT_EQ(plan({64, 64, 64, 64, 64}, 64, 256, 64), (Counts{1, 3, 1}));
}

TEST(PlanBuckets, TheLastBucketHoldsAsManyAsFit) {
  EXPECT_EQ(plan({640, 64, 64, 64}, 64, 10'000, 128), (Counts{1, 1, 2}));
  EXPECT_EQ(plan({640, 64, 64, 64}, 64, 10'000, 127), (Counts{1, 2, 1}));
  EXPECT_EQ(plan({640, 64, 64, 64}, 64, 10'000, 192), (Counts{1, 3}));
}

TEST(PlanBuckets, TheFinalParameterIsTheLastBucketHoweverLarge) {
  EXPECT_EQ(plan({64, 64, 6400}, 64, 10'000, 64), (Counts{1, 1, 1}));
  EXPECT_EQ(plan({64, 64, 6400}, 1000, 10'000, 0), (Counts{2, 1}));
}

TEST(PlanBuckets, NeverSplitsAParameter) {
  EXPECT_EQ(plan({100'000}, 64, 64, 64), (Counts{1}));
  EXPECT_EQ(plan({100'000, 100'000, 16}, 64, 64, 64), (Counts{1, 1, 1}));
  EXPECT_EQ(plan({16, 100'000, 16, 16}, 64, 64, 16), (Counts{2, 1, 1}));
}

TEST(PlanBuckets, AllTinyIsOneBucket) {
  EXPECT_EQ(plan({1, 1, 1, 1}, 1000, 1000, 1000), (Counts{4}));
  EXPECT_EQ(plan({1}, 1000, 1000, 1000), (Counts{1}));
  EXPECT_EQ(plan({}, 1000, 1000, 1000), Counts{});
}

TEST(PlanBuckets, ZeroCapacitiesGiveEveryParameterItsOwn) {
  EXPECT_EQ(plan({16, 16, 16, 16}, 0, 0, 0), (Counts{1, 1, 1, 1}));
}

// Gaps and padding belong to the bucket before them, so buckets cover the arena.
TEST(PlanBuckets, CoversPadding) {
  std::vector<Parameter> parameters = parameters_of({5, 7, 9});
  parameters[2].offset += 3 * kLine;
  const std::vector<Bucket> buckets =
      plan_buckets(parameters, {.first_bytes = 0, .middle_bytes = 0, .last_bytes = 0});
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[1].begin, kLine);
  EXPECT_EQ(buckets[1].end, 5 * kLine);
  EXPECT_EQ(buckets[2].begin, 5 * kLine);
  EXPECT_EQ(buckets[2].end, 6 * kLine);
}

TEST(PlanBuckets, RejectsOverlappingOffsets) {
  std::vector<Parameter> parameters = parameters_of({20, 7});
  std::swap(parameters[0].offset, parameters[1].offset);
  EXPECT_THROW(plan_buckets(parameters, {}), Error);
}

// Half gradients cost half as much, and no bucket mixes types.
TEST(PlanBuckets, EachElementTypeHasItsOwnBuckets) {
  const std::vector<Parameter> parameters = parameters_of({64, 64, 64, 64, 64, 64}, 4);
  const std::vector<Bucket> buckets =
      plan_buckets(parameters, {.first_bytes = 128, .middle_bytes = 4096, .last_bytes = 256});
  ASSERT_EQ(buckets.size(), 4u);
  const DType types[] = {DType::f16, DType::f16, DType::f32, DType::f32};
  const std::size_t bytes[] = {128, 384, 256, 256};
  std::int64_t end = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(buckets[i].type, types[i]) << i;
    EXPECT_EQ(buckets[i].bytes(), bytes[i]) << i;
    EXPECT_EQ(buckets[i].begin, end) << i;
    end = buckets[i].end;
  }
}

TEST(PlanBuckets, RejectsHalfGradientsBehindOthers) {
  std::vector<Parameter> parameters = parameters_of({64, 64, 64}, 1);
  std::swap(parameters[0].gradient_type, parameters[1].gradient_type);
  EXPECT_THROW(plan_buckets(parameters, {}), Error);
}

}  // namespace
}  // namespace lockstep
