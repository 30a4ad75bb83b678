// SPDX-License-Identifier: Apache-2.0
#include "comm/sums/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "comm/gradients/partition.h"
#include "comm/sums/sum_tree.h"
#include "core/error.h"
#include "tests/comm/naive_tree.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

template <typename To, typename From>
std::vector<To> reduced(const std::vector<std::vector<From>>& sources, Reduction reduction) {
  std::vector<const void*> pointers;
  for (const auto& source : sources) pointers.push_back(source.data());
  std::vector<To> result(sources.empty() ? 0 : sources[0].size());
  void* destination = result.data();
  reduction.from = dtype_of<From>;
  reduction.to = dtype_of<To>;
  reduce_along_tree(pointers, {&destination, 1}, result.size(), reduction);
  return result;
}

TEST(Reduce, AddsAlongTheTree) {
  EXPECT_EQ((reduced<float, float>({{1e8f}, {-1e8f}, {1.0f}}, {}))[0], 1.0f);
  EXPECT_EQ((reduced<float, float>({{1e8f}, {1.0f}, {-1e8f}}, {}))[0], 0.0f);
  // In rank order the result would be 1.
  EXPECT_EQ((reduced<float, float>({{1.0f}, {1e8f}, {-1e8f}, {1.0f}}, {}))[0], 0.0f);
}

// Values whose sum depends on the order. None is NaN.
template <typename T>
T term(int rank, std::size_t i) {
  const auto word = static_cast<std::uint32_t>(i * 2654435761u + static_cast<std::uint32_t>(rank) * 40503u);
  const int digits = static_cast<int>(word >> 7) % 2001 - 1000;
  if constexpr (std::is_same_v<T, std::int32_t>) return digits;
  return static_cast<T>(static_cast<float>(digits) * (word % 3 == 0 ? 31.7f : 0.013f));
}

template <typename T>
using SumOf = std::conditional_t<std::is_same_v<T, std::int32_t>, std::int32_t, float>;

template <typename T>
SumOf<T> naive_sum(int ranks, std::size_t i, ReduceOp op) {
  return naive_tree<40>(
      ranks, [i](int rank) { return static_cast<SumOf<T>>(term<T>(rank, i)); },
      [op](SumOf<T> a, SumOf<T> b) { return op == ReduceOp::sum ? a + b : std::max(a, b); });
}

template <typename T>
void expect_tree(int ranks, ReduceOp op) {
  constexpr std::size_t kCount = 2048 + 37;  // more than a block, not a multiple of a vector
  std::vector<std::vector<T>> sources;
  for (int rank = 0; rank < ranks; ++rank) {
    sources.emplace_back(kCount);
    for (std::size_t i = 0; i < kCount; ++i) sources.back()[i] = term<T>(rank, i);
  }
  const std::vector<T> sums = reduced<T>(sources, {.op = op});
  for (std::size_t i = 0; i < kCount; ++i) {
    const T expected = static_cast<T>(naive_sum<T>(ranks, i, op));
    ASSERT_EQ(std::memcmp(&sums[i], &expected, sizeof(T)), 0) << ranks << " ranks, element " << i;
  }
}

TEST(Reduce, HasTheBitsOfTheTreeForAnyNumberOfRanks) {
  for (int ranks = 1; ranks <= 40; ++ranks) {
    expect_tree<float>(ranks, ReduceOp::sum);
    expect_tree<std::int32_t>(ranks, ReduceOp::sum);
    expect_tree<Half>(ranks, ReduceOp::sum);
    expect_tree<BFloat16>(ranks, ReduceOp::sum);
    expect_tree<float>(ranks, ReduceOp::max);
  }
}

// Adds each node's partial sums and then the results, for every assignment of ranks to nodes.
TEST(Reduce, PartialSumsOfNodesGiveTheSameBits) {
  constexpr std::size_t kCount = 50;
  for (int ranks = 1; ranks <= 7; ++ranks) {
    for (const std::vector<int>& node_of : dealings(ranks)) {
      std::vector<std::vector<float>> partials;
      std::vector<int> ends;
      for (const PartialSum& sum : partial_sums(node_of)) {
        std::vector<std::vector<float>> sources;
        for (int rank = sum.begin; rank < sum.end; ++rank) {
          sources.emplace_back(kCount);
          for (std::size_t i = 0; i < kCount; ++i) sources.back()[i] = term<float>(rank, i);
        }
        partials.push_back(reduced<float>(sources, {}));
        ends.push_back(sum.end);
      }
      const std::vector<float> sums = reduced<float>(partials, {.ends = ends});
      for (std::size_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(sums[i], naive_sum<float>(ranks, i, ReduceOp::sum)) << testing::PrintToString(node_of);
      }
    }
  }
}

TEST(Reduce, SixteenBitSumsAreRoundedOnce) {
  // 256 + 1 is no bfloat16 value and rounds to 256; 256 + 1 + 1 is one.
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

TEST(Reduce, AMinimumKeepsNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Reduction min = {.op = ReduceOp::min};
  EXPECT_EQ((reduced<float, float>({{2.0f}, {1.0f}, {3.0f}}, min))[0], 1.0f);
  EXPECT_TRUE(std::isnan((reduced<float, float>({{1.0f}, {nan}, {2.0f}}, min))[0]));
  EXPECT_TRUE(std::isnan((reduced<float, float>({{nan}, {1.0f}}, min))[0]));
  EXPECT_EQ((reduced<std::int32_t, std::int32_t>({{1}, {0}, {1}}, min))[0], 0);
}

TEST(Reduce, DestinationsMayBeTheSources) {
  constexpr std::size_t kCount = 10'000;  // several blocks
  std::vector<std::vector<float>> ranks(3, std::vector<float>(kCount));
  for (std::size_t r = 0; r < 3; ++r) {
    for (std::size_t i = 0; i < kCount; ++i) ranks[r][i] = static_cast<float>(i * (r + 1));
  }
  const std::vector<const void*> sources = {ranks[0].data(), ranks[1].data(), ranks[2].data()};
  const std::vector<void*> destinations = {ranks[0].data(), ranks[1].data(), ranks[2].data()};
  reduce_along_tree(sources, destinations, kCount, {});
  for (const auto& rank : ranks) {
    for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(rank[i], static_cast<float>(6 * i));
  }
}

// Each bit pattern once in each source, reduced together and one by one.
template <typename From, typename To>
void expect_same_alone(ReduceOp op) {
  constexpr std::size_t kCount = 65536 + 5;
  std::vector<std::vector<From>> sources(3, std::vector<From>(kCount));
  for (std::size_t source = 0; source < sources.size(); ++source)
    for (std::size_t i = 0; i < kCount; ++i)
      sources[source][i].bits = static_cast<std::uint16_t>(i * (2 * source + 1) + 12345 * source);
  const std::vector<To> together = reduced<To>(sources, {.op = op});
  for (std::size_t i = 0; i < kCount; i += kOneOf) {
    const auto alone = static_cast<float>(
        reduced<To, From>({{sources[0][i]}, {sources[1][i]}, {sources[2][i]}}, {.op = op})[0]);
    const auto here = static_cast<float>(together[i]);
    ASSERT_TRUE(std::isnan(here) ? std::isnan(alone) : here == alone)
        << "element " << i << ": " << here << ", alone " << alone;
  }
}

TEST(Reduce, ManyElementsHaveTheResultsOfSingleElements) {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
    expect_same_alone<Half, Half>(op);
    expect_same_alone<Half, float>(op);
    expect_same_alone<BFloat16, BFloat16>(op);
    expect_same_alone<BFloat16, float>(op);
  }
}

TEST(Reduce, RefusesTypesThatCannotBeAdded) {
  EXPECT_FALSE(reducible(DType::u8));
  EXPECT_THROW((reduced<std::uint8_t, std::uint8_t>({{1}, {2}}, {})), Error);
  EXPECT_THROW((reduced<float, float>({}, {})), Error);
}

TEST(Reduce, RefusesPartialSumsThatAreNoSubtrees) {
  const std::vector<std::vector<float>> two = {{1}, {2}};
  for (const std::vector<int>& ends : {std::vector{3, 4}, std::vector{0, 4}, std::vector{1, 2, 3}}) {
    EXPECT_THROW((reduced<float, float>(two, {.ends = ends})), Error) << testing::PrintToString(ends);
  }
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
