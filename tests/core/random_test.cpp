// SPDX-License-Identifier: Apache-2.0
#include "core/random.h"

#include <cmath>
#include <numbers>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// The known answers published with Random123 (D. E. Shaw Research, kat_vectors, philox4x32-10).
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox({ones, ones, ones, ones}, {ones, ones}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, IsThePhiloxBlockOfSeedPurposeAndIndex) {
  const std::uint64_t seed = 0x299f31d0'a4093822;
  const std::uint64_t purpose = 0x03707344'13198a2e;
  const Random random(seed, purpose);
  const std::uint64_t block = 0x123'456789ab;
  const PhiloxCounter expected =
      philox({0x456789ab, 0x123, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0});
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(random.bits(4 * block + i), expected[i]);
}

TEST(Random, DependsOnSeedPurposeAndIndexOnly) {
  const Random one(1, "weights of conv1");
  const Random same(1, "weights of conv1");
  std::set<std::uint32_t> values;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    values.insert(one.bits(i));
    values.insert(Random(2, "weights of conv1").bits(i));
    values.insert(Random(1, "weights of conv2").bits(i));
  }
  EXPECT_EQ(one.bits(1'000'000), same.bits(1'000'000));  // independent of earlier calls
  EXPECT_GE(values.size(), 2998u);  // 3000 of 2^32: the chance of one collision is 1 in 1000
}

TEST(Random, UniformHasTheRightRangeAndMoments) {
  const Random random(7, "uniform");
  constexpr int kCount = 200'000;
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const float value = random.uniform(i);
    ASSERT_GE(value, 0.0f);
    ASSERT_LT(value, 1.0f);
    sum += value;
    squares += double{value} * value;
    ASSERT_EQ(random.uniform(i, -3.0f, 5.0f), -3.0f + 8.0f * value);
  }
  // Five standard errors: sqrt(1/12/n) and sqrt(4/45/n).
  EXPECT_NEAR(sum / kCount, 0.5, 5 * std::sqrt(1.0 / 12 / kCount));
  EXPECT_NEAR(squares / kCount, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / kCount));
}

TEST(Random, NormalHasTheRightMoments) {
  const Random random(7, "normal");
  constexpr int kCount = 200'000;
  double moments[5] = {};
  for (int i = 0; i < kCount; ++i) {
    const double value = random.normal(i);
    ASSERT_TRUE(std::isfinite(value));
    double power = 1;
    for (double& moment : moments) {
      moment += power / kCount;
      power *= value;
    }
  }
  // Five standard errors: the variances of z, z^2, z^3, z^4 are 1, 2, 15, 96.
  EXPECT_NEAR(moments[1], 0, 5 * std::sqrt(1.0 / kCount));
  EXPECT_NEAR(moments[2], 1, 5 * std::sqrt(2.0 / kCount));
  EXPECT_NEAR(moments[3], 0, 5 * std::sqrt(15.0 / kCount));
  EXPECT_NEAR(moments[4], 3, 5 * std::sqrt(96.0 / kCount));
}

// Exact up to rounding: nearly always equal to the last bit of a float, and never more than one bit off.
TEST(Random, NormalIsBoxMuller) {
  const Random random(7, "box muller");
  int rounded_otherwise = 0;
  for (std::uint64_t i = 0; i < 200'000; ++i) {
    const long double radius = (random.bits(2 * i) + 1.0L) * 0x1p-32L;
    const long double turn = random.bits(2 * i + 1) * 0x1p-32L;
    const auto exact = static_cast<float>(std::sqrt(-2 * std::log(radius)) *
                                          std::cos(2 * std::numbers::pi_v<long double> * turn));
    const float value = random.normal(i);
    if (value == exact) continue;
    ++rounded_otherwise;
    ASSERT_LE(std::abs(value - exact), 0x1p-23f * std::abs(exact)) << "number " << i;
  }
  EXPECT_LE(rounded_otherwise, 2);
}

TEST(Random, NormalsEqualsRepeatedCallsOfNormal) {
  const Random random(7, "many");
  for (const std::size_t count : {0u, 1u, 2u, 31u, 32u, 33u, 1000u}) {
    std::vector<float> values(count + 1, 77);
    random.normals(std::span(values).first(count));
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(values[i], random.normal(i)) << i << " of " << count;
    EXPECT_EQ(values[count], 77) << "written beyond the end";
  }
}

TEST(Random, NeighbouringNumbersAreUncorrelated) {
  const Random random(7, "pairs");
  constexpr int kCount = 100'000;
  double products = 0;
  for (int i = 0; i < kCount; ++i) products += double{random.normal(i)} * random.normal(i + 1);
  EXPECT_NEAR(products / kCount, 0, 5 * std::sqrt(1.0 / kCount));
}

}  // namespace
}  // namespace lockstep
