// SPDX-License-Identifier: Apache-2.0
#include "comm/gradients/bucket_plan.h"

#include <utility>

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/comm/bucket_parameters.h"

namespace lockstep {
namespace {

// The number of parameters in each bucket. Capacities count elements.
std::vector<std::size_t> plan(std::initializer_list<std::int64_t> sizes, std::size_t first,
                              std::size_t middle, std::size_t last) {
  const std::vector<Parameter> parameters = parameters_of(sizes);
  const BucketPlan made(parameters,
                        {.first_bytes = 4 * first, .middle_bytes = 4 * middle, .last_bytes = 4 * last}, 1);
  std::vector<std::size_t> counts;
  std::size_t next = 0;
  std::int64_t end = parameters.empty() ? 0 : parameters.front().offset;
  for (const Bucket& bucket : made.buckets()) {
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

TEST(BucketPlan, ClosesABucketWhenItReachesItsCapacity) {
  EXPECT_EQ(plan({64, 64, 64, 64, 64, 64, 64, 64, 64, 64}, 64, 256, 64), (Counts{1, 4, 4, 1}));
  EXPECT_EQ(plan({64, 64, 64, 64, 64, 64, 64, 64, 64, 64}, 65, 192, 128), (Counts{2, 3, 3, 2}));
}

TEST(BucketPlan, RemainingParametersBeforeTheLastBucketFormABucket) {
  EXPECT_EQ(plan({64, 64, 64, 64, 64, 64}, 64, 256, 64), (Counts{1, 4, 1}));
  EXPECT_EQ(plan({64, 64, 64, 64, 64}, 64, 256, 64), (Counts{1, 3, 1}));
}

TEST(BucketPlan, TheLastBucketHoldsAsManyParametersAsFit) {
  EXPECT_EQ(plan({640, 64, 64, 64}, 64, 10'000, 128), (Counts{1, 1, 2}));
  EXPECT_EQ(plan({640, 64, 64, 64}, 64, 10'000, 127), (Counts{1, 2, 1}));
  EXPECT_EQ(plan({640, 64, 64, 64}, 64, 10'000, 192), (Counts{1, 3}));
}

TEST(BucketPlan, TheFinalParameterFormsTheLastBucketWhateverItsSize) {
  EXPECT_EQ(plan({64, 64, 6400}, 64, 10'000, 64), (Counts{1, 1, 1}));
  EXPECT_EQ(plan({64, 64, 6400}, 1000, 10'000, 0), (Counts{2, 1}));
}

TEST(BucketPlan, NeverSplitsAParameter) {
  EXPECT_EQ(plan({100'000}, 64, 64, 64), (Counts{1}));
  EXPECT_EQ(plan({100'000, 100'000, 16}, 64, 64, 64), (Counts{1, 1, 1}));
  EXPECT_EQ(plan({16, 100'000, 16, 16}, 64, 64, 16), (Counts{2, 1, 1}));
}

TEST(BucketPlan, TinyParametersFormOneBucket) {
  EXPECT_EQ(plan({1, 1, 1, 1}, 1000, 1000, 1000), (Counts{4}));
  EXPECT_EQ(plan({1}, 1000, 1000, 1000), (Counts{1}));
  EXPECT_EQ(plan({}, 1000, 1000, 1000), Counts{});
}

TEST(BucketPlan, ZeroCapacitiesGiveEveryParameterItsOwnBucket) {
  EXPECT_EQ(plan({16, 16, 16, 16}, 0, 0, 0), (Counts{1, 1, 1, 1}));
}

// Gaps and padding belong to the preceding bucket, so that the buckets cover the arena.
TEST(BucketPlan, CoversPadding) {
  std::vector<Parameter> parameters = parameters_of({5, 7, 9});
  parameters[2].offset += 3 * kLine;
  const BucketPlan made(parameters, {.first_bytes = 0, .middle_bytes = 0, .last_bytes = 0}, 1);
  const std::span<const Bucket> buckets = made.buckets();
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[1].begin, kLine);
  EXPECT_EQ(buckets[1].end, 5 * kLine);
  EXPECT_EQ(buckets[2].begin, 5 * kLine);
  EXPECT_EQ(buckets[2].end, 6 * kLine);
}

TEST(BucketPlan, RejectsOverlappingOffsets) {
  std::vector<Parameter> parameters = parameters_of({20, 7});
  std::swap(parameters[0].offset, parameters[1].offset);
  EXPECT_THROW(BucketPlan(parameters, {}, 1), Error);
}

// 16-bit gradients take half the bytes, and no bucket mixes types.
TEST(BucketPlan, EachElementTypeHasItsOwnBuckets) {
  const std::vector<Parameter> parameters = parameters_of({64, 64, 64, 64, 64, 64}, 4);
  const BucketPlan made(parameters, {.first_bytes = 128, .middle_bytes = 4096, .last_bytes = 256}, 1);
  const std::span<const Bucket> buckets = made.buckets();
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
  ASSERT_EQ(made.ranges().size(), 2u);
  EXPECT_EQ(made.ranges()[0].end, buckets[2].begin);
  EXPECT_EQ(made.ranges()[1].end, buckets[3].end);
  EXPECT_EQ(made.bytes(), 128u + 384u + 256u + 256u);
}

// Shares are whole cache lines and equal for all ranks; the rest is too small for equal shares, in any type.
// The buckets equal those of one rank: nothing is padded.
TEST(BucketPlan, GivesEveryRankAnEqualShareOfEachBucket) {
  const std::vector<Parameter> parameters = parameters_of({640, 5, 1000, 64, 33, 7, 4096, 16}, 5);
  const BucketCapacities capacities{.first_bytes = 512, .middle_bytes = 4096, .last_bytes = 64};
  const BucketPlan alone(parameters, capacities, 1);
  for (int ranks = 1; ranks <= 9; ++ranks) {
    const BucketPlan plan(parameters, capacities, ranks);
    ASSERT_EQ(plan.buckets().size(), alone.buckets().size());
    for (std::size_t i = 0; i < plan.buckets().size(); ++i) {
      const Bucket& bucket = plan.buckets()[i];
      EXPECT_EQ(bucket.begin, alone.buckets()[i].begin);
      EXPECT_EQ(bucket.end, alone.buckets()[i].end);
      const auto line = static_cast<std::int64_t>(kAlignment / size_of(bucket.type));
      std::int64_t end = bucket.begin;
      for (int rank = 0; rank < ranks; ++rank) {
        const ElementRange share = bucket.share_of(rank);
        EXPECT_EQ(share.begin, end);
        EXPECT_EQ(share.count(), bucket.share);
        EXPECT_EQ(share.count() % line, 0);
        end = share.end;
      }
      EXPECT_EQ(plan.rest_of(bucket), (ElementRange{end, bucket.end}));
      EXPECT_GE(plan.rest_of(bucket).count(), 0);
      EXPECT_LT(plan.rest_of(bucket).count(), ranks * line);
    }
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const Bucket& bucket = plan.buckets()[plan.bucket_of(p)];
      EXPECT_TRUE(bucket.first_parameter <= p && p < bucket.last_parameter) << p;
    }
  }
  EXPECT_THROW(BucketPlan(parameters, capacities, 0), Error);
}

TEST(BucketPlan, RejectsHalfGradientsAfterOtherTypes) {
  std::vector<Parameter> parameters = parameters_of({64, 64, 64}, 1);
  std::swap(parameters[0].gradient_type, parameters[1].gradient_type);
  EXPECT_THROW(BucketPlan(parameters, {}, 1), Error);
}

}  // namespace
}  // namespace lockstep
