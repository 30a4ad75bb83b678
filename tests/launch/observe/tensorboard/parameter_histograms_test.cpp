// SPDX-License-Identifier: Apache-2.0
//
// tensorboard_test.py checks that TensorBoard reads the same values, and that they are the network's.
#include "launch/observe/tensorboard/parameter_histograms.h"

#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Histogram, CountsEachValueOnce) {
  std::vector<float> values(301);
  std::iota(values.begin(), values.end(), -100.0f);
  const Histogram histogram = histogram_of("tag", values);
  EXPECT_EQ(histogram.tag, "tag");
  EXPECT_EQ(histogram.values, 301);
  EXPECT_EQ(histogram.min, -100);
  EXPECT_EQ(histogram.max, 200);
  EXPECT_EQ(histogram.sum, 301 * 50);
  EXPECT_EQ(histogram.sum_of_squares, 3025050);
  ASSERT_EQ(histogram.limits.size(), 30u);
  ASSERT_EQ(histogram.counts.size(), 30u);
  EXPECT_EQ(histogram.limits.front(), -90);
  EXPECT_EQ(histogram.limits.back(), 200);
  for (std::size_t i = 0; i < 29; ++i) EXPECT_EQ(histogram.counts[i], 10) << i;
  EXPECT_EQ(histogram.counts.back(), 11) << "includes the largest value";
}

TEST(Histogram, IsDividedByTheLossScale) {
  const Histogram histogram = histogram_of("tag", std::vector<float>{-1024, 2048}, 1024);
  EXPECT_EQ(histogram.min, -1);
  EXPECT_EQ(histogram.max, 2);
  EXPECT_EQ(histogram.sum_of_squares, 5);
}

TEST(Histogram, PutsEqualValuesIntoOneBucket) {
  const Histogram histogram = histogram_of("tag", std::vector<float>(7, 0.5f));
  EXPECT_EQ(histogram.limits, std::vector<double>{0.5});
  EXPECT_EQ(histogram.counts, std::vector<double>{7});
}

TEST(Histogram, OmitsValuesThatAreNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Histogram histogram = histogram_of(
      "tag", std::vector<float>{infinity, 1, std::numeric_limits<float>::quiet_NaN(), 3, -infinity});
  EXPECT_EQ(histogram.values, 2);
  EXPECT_EQ(histogram.min, 1);
  EXPECT_EQ(histogram.max, 3);
}

}  // namespace
}  // namespace lockstep
