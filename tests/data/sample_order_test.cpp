// SPDX-License-Identifier: Apache-2.0
#include "data/sample_order.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"

namespace lockstep {
namespace {

std::vector<std::int64_t> whole(const SampleOrder& order) {
  std::vector<std::int64_t> samples;
  for (std::int64_t position = 0; position < order.size(); ++position) samples.push_back(order(position));
  return samples;
}

// The sum over cells of (observed - expected)^2 / expected.
double chi_square(const std::vector<std::int64_t>& counts) {
  const double expected =
      static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0})) /
      static_cast<double>(counts.size());
  double sum = 0;
  for (const std::int64_t count : counts) {
    sum += (static_cast<double>(count) - expected) * (static_cast<double>(count) - expected) / expected;
  }
  return sum;
}

class SampleOrderSizes : public testing::TestWithParam<std::int64_t> {};

TEST_P(SampleOrderSizes, EverySampleOccursOnce) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(GetParam()));
  std::iota(all.begin(), all.end(), 0);
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{7}, ~std::uint64_t{0}}) {
    for (const std::uint64_t epoch : {0, 1, 100}) {
      std::vector<std::int64_t> samples = whole(SampleOrder(GetParam(), seed, epoch));
      std::sort(samples.begin(), samples.end());
      ASSERT_EQ(samples, all) << "seed " << seed << ", epoch " << epoch;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, SampleOrderSizes,
                         testing::Values(1, 2, 3, 4, 5, 7, 16, 17, 100, 255, 256, 257, 1000, 60'000, 65'537));

TEST(SampleOrder, IsUniformOverAHugeDataset) {
  const std::int64_t size = (std::int64_t{1} << 40) + 12'345;
  const SampleOrder order(size, 3, 4);
  std::vector<std::int64_t> samples;
  std::vector<std::int64_t> sixteenths(16);
  for (std::int64_t i = 0; i < 4096; ++i) {
    samples.push_back(order(size - 1 - i));
    ASSERT_GE(samples.back(), 0);
    ASSERT_LT(samples.back(), size);
    ++sixteenths[static_cast<std::size_t>(samples.back() / (size / 16 + 1))];
  }
  std::sort(samples.begin(), samples.end());
  EXPECT_EQ(std::adjacent_find(samples.begin(), samples.end()), samples.end());
  EXPECT_LT(chi_square(sixteenths), 44.3);  // 15 degrees of freedom, one in ten thousand
}

TEST(SampleOrder, DependsOnEveryBitOfSeedAndEpoch) {
  const std::vector<std::int64_t> base = whole(SampleOrder(1000, 5, 6));
  for (int bit = 0; bit < 64; ++bit) {
    const std::uint64_t mask = std::uint64_t{1} << bit;
    EXPECT_NE(whole(SampleOrder(1000, 5 ^ mask, 6)), base) << "bit " << bit << " of the seed";
    EXPECT_NE(whole(SampleOrder(1000, 5, 6 ^ mask)), base) << "bit " << bit << " of the epoch";
  }
  EXPECT_NE(whole(SampleOrder(1000, 6, 5)), base);
}

// Each limit is the chi-square that a fair shuffle exceeds once in ten thousand.
TEST(SampleOrder, IsAsUniformAsAShuffle) {
  constexpr std::int64_t kSize = 100;
  constexpr double kLimit99 = 161.3;  // 99 degrees of freedom
  constexpr double kLimit98 = 160.1;  // 98
  for (const std::int64_t position : {0, 1, 50, 99}) {
    std::vector<std::int64_t> sample_here(kSize);
    std::vector<std::int64_t> distance_to_next(kSize);
    for (std::uint64_t epoch = 0; epoch < 20'000; ++epoch) {
      const SampleOrder order(kSize, 42, epoch);
      const std::int64_t sample = order(position);
      const std::int64_t next = order((position + 1) % kSize);
      ++sample_here[static_cast<std::size_t>(sample)];
      ++distance_to_next[static_cast<std::size_t>((next - sample + kSize) % kSize)];
    }
    EXPECT_LT(chi_square(sample_here), kLimit99) << "position " << position;
    EXPECT_EQ(distance_to_next[0], 0);
    distance_to_next.erase(distance_to_next.begin());
    EXPECT_LT(chi_square(distance_to_next), kLimit98) << "position " << position;
  }
}

// A dataset sorted by class: every batch must have its share of each class.
TEST(SampleOrder, MixesASortedDataset) {
  const SampleOrder order(60'000, 1, 0);
  for (std::int64_t begin = 0; begin < 60'000; begin += 1000) {
    std::vector<std::int64_t> classes(10);
    for (std::int64_t i = begin; i < begin + 1000; ++i) ++classes[static_cast<std::size_t>(order(i) / 6000)];
    EXPECT_LT(chi_square(classes), 33.7) << begin;  // 9 degrees of freedom, one in ten thousand
  }
}

// A resumed run, or one repeated years later, must see the same order.
TEST(SampleOrder, IsStable) {
  EXPECT_EQ(whole(SampleOrder(10, 0, 0)), (std::vector<std::int64_t>{9, 5, 0, 3, 1, 7, 8, 6, 2, 4}));
  EXPECT_EQ(whole(SampleOrder(10, 1, 2)), (std::vector<std::int64_t>{2, 4, 3, 7, 9, 8, 6, 5, 1, 0}));
  const SampleOrder large(60'000, 0x123456789abcdef0u, 0xfedcba9876543210u);
  EXPECT_EQ((std::vector{large(0), large(1), large(2), large(59'999)}),
            (std::vector<std::int64_t>{37974, 15859, 14717, 55488}));
}

TEST(SampleOrder, ChecksItsArguments) {
  EXPECT_THROW(SampleOrder(0, 0, 0), Error);
  const SampleOrder order(3, 0, 0);
  EXPECT_THROW(order(3), Error);
  EXPECT_THROW(order(-1), Error);
}

}  // namespace
}  // namespace lockstep
