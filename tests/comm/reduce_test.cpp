// SPDX-License-Identifier: Apache-2.0
#include "comm/reduce.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "comm/partition.h"
#include "core/error.h"

namespace lockstep {
namespace {

template <typename To, typename From>
std::vector<To> reduced(const std::vector<std::vector<From>>& sources, Reduction reduction) {
  std::vector<const void*> pointers;
  for (const auto& source : sources) pointers.push_back(source.data());
  std::vector<To> result(sources[0].size());
  void* destination = result.data();
  reduction.from = dtype_of<From>;
  reduction.to = dtype_of<To>;
  reduce_in_rank_order(pointers, {&destination, 1}, result.size(), reduction);
  return result;
}

TEST(Reduce, AddsInTheOrderGiven) {
  EXPECT_EQ((reduced<float, float>({{1e8f}, {-1e8f}, {1.0f}}, {}))[0], 1.0f);
  EXPECT_EQ((reduced<float, float>({{1e8f}, {1.0f}, {-1e8f}}, {}))[0], 0.0f);
}

TEST(Reduce, AddsGroupsFirst) {
  const std::vector<std::vector<float>> sources = {{1.0f}, {1e8f}, {-1e8f}, {1.0f}};
  EXPECT_EQ((reduced<float, float>(sources, {}))[0], 1.0f);
  EXPECT_EQ((reduced<float, float>(sources, {.group = 2}))[0], 0.0f);
}

TEST(Reduce, SixteenBitSumsAreRoundedOnce) {
  // 256 + 1 is not a bfloat16 and rounds to 256; 256 + 1 + 1 is one.
  const BFloat16 big(256.0f), one(1.0f);
  EXPECT_EQ(static_cast<float>((reduced<BFloat16, BFloat16>({{big}, {one}, {one}}, {}))[0]), 258.0f);
  EXPECT_EQ((reduced<float, BFloat16>({{big}, {one}}, {}))[0], 257.0f);
  EXPECT_EQ((reduced<Half, float>({{2048.0f}, {0.5f}, {1.5f}}, {}))[0].bits, Half(2050.0f).bits);
  EXPECT_EQ((reduced<float, Half>({{Half(2048.0f)}, {Half(1.0f)}}, {}))[0], 2049.0f);
}

TEST(Reduce, IntegersWrap) {
  const std::int32_t largest = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ((reduced<std::int32_t, std::int32_t>({{largest}, {1}}, {}))[0],
            std::numeric_limits<std::int32_t>::min());
}

TEST(Reduce, AMaximumKeepsNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Reduction max = {.op = ReduceOp::max};
  EXPECT_EQ((reduced<float, float>({{1.0f}, {3.0f}, {2.0f}}, max))[0], 3.0f);
  EXPECT_TRUE(std::isnan((reduced<float, float>({{1.0f}, {nan}, {2.0f}}, max))[0]));
  EXPECT_TRUE(std::isnan((reduced<float, float>({{nan}, {1.0f}}, max))[0]));
}

TEST(Reduce, DestinationsMayBeTheSources) {
  constexpr std::size_t kCount = 10'000;  // several blocks
  std::vector<std::vector<float>> ranks(3, std::vector<float>(kCount));
  for (std::size_t r = 0; r < 3; ++r) {
    for (std::size_t i = 0; i < kCount; ++i) ranks[r][i] = static_cast<float>(i * (r + 1));
  }
  const std::vector<const void*> sources = {ranks[0].data(), ranks[1].data(), ranks[2].data()};
  const std::vector<void*> destinations = {ranks[0].data(), ranks[1].data(), ranks[2].data()};
  reduce_in_rank_order(sources, destinations, kCount, {});
  for (const auto& rank : ranks) {
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(rank[i], static_cast<float>(6 * i));
  }
}

// Every pattern of bits once in each source, so that many elements are reduced together; and one by one.
template <typename From, typename To>
void expect_same_alone(ReduceOp op) {
  constexpr std::size_t kCount = 65536 + 5;
  std::vector<std::vector<From>> sources(3, std::vector<From>(kCount));
  for (std::size_t source = 0; source < sources.size(); ++source)
    for (std::size_t i = 0; i < kCount; ++i)
      sources[source][i].bits = static_cast<std::uint16_t>(i * (2 * source + 1) + 12345 * source);
  const std::vector<To> together = reduced<To>(sources, {.op = op});
  for (std::size_t i = 0; i < kCount; ++i) {
    const auto alone = static_cast<float>(
        reduced<To, From>({{sources[0][i]}, {sources[1][i]}, {sources[2][i]}}, {.op = op})[0]);
    const auto here = static_cast<float>(together[i]);
    ASSERT_TRUE(std::isnan(here) ? std::isnan(alone) : here == alone)
        << "element " << i << ": " << here << " and alone " << alone;
  }
}

TEST(Reduce, ManyElementsBecomeWhatEachBecomesAlone) {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
    expect_same_alone<Half, Half>(op);
    expect_same_alone<Half, float>(op);
    expect_same_alone<BFloat16, BFloat16>(op);
    expect_same_alone<BFloat16, float>(op);
  }
}

TEST(Reduce, RefusesWhatCannotBeAdded) {
  EXPECT_FALSE(reducible(DType::u8));
  EXPECT_THROW((reduced<std::uint8_t, std::uint8_t>({{1}, {2}}, {})), Error);
  EXPECT_THROW((reduced<float, float>({{1}, {2}, {3}}, {.group = 2})), Error);
}

TEST(Partition, PartsCoverEverythingOnceAndBeginAtCacheLines) {
  for (std::size_t count : {0u, 1u, 15u, 16u, 17u, 1000u, 4097u}) {
    for (int parts : {1, 2, 3, 5, 64}) {
      const Partition partition = Partition::even(count, parts, sizeof(float));
      std::size_t covered = 0;
      for (int k = 0; k < parts; ++k) {
        EXPECT_EQ(partition.begin(k), covered);
        EXPECT_TRUE(partition.size(k) == 0 || partition.begin(k) * sizeof(float) % kAlignment == 0);
        covered += partition.size(k);
      }
      EXPECT_EQ(covered, count);
    }
  }
}

}  // namespace
}  // namespace lockstep
