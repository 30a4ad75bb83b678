// SPDX-License-Identifier: Apache-2.0
#include "comm/sums/sum_tree.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/comm/naive_tree.h"

namespace lockstep {
namespace {

// "0-3@0 4@1": ranks 0 to 3 on node 0, and rank 4 on node 1.
std::string described(const std::vector<int>& node_of) {
  std::string text;
  for (const PartialSum& sum : partial_sums(node_of)) {
    text += text.empty() ? "" : " ";
    text += sum.end == sum.begin + 1 ? fmt::format("{}@{}", sum.begin, sum.node)
                                     : fmt::format("{}-{}@{}", sum.begin, sum.end - 1, sum.node);
  }
  return text;
}

TEST(SumTree, ANodeWithAPowerOfTwoRanksContributesOneSum) {
  EXPECT_EQ(described({0}), "0@0");
  EXPECT_EQ(described({0, 0, 0}), "0-2@0");
  EXPECT_EQ(described({0, 0, 1, 1}), "0-1@0 2-3@1");
  EXPECT_EQ(described({0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2}), "0-3@0 4-7@1 8-11@2");
}

TEST(SumTree, AShorterLastNodeContributesOneSum) {
  EXPECT_EQ(described({0, 0, 1}), "0-1@0 2@1");
  EXPECT_EQ(described({0, 0, 0, 0, 1, 1, 1}), "0-3@0 4-6@1");
}

TEST(SumTree, OtherNodesContributeOneSumPerSubtree) {
  EXPECT_EQ(described({0, 0, 0, 1, 1, 1}), "0-1@0 2@0 3@1 4-5@1");
  EXPECT_EQ(described({0, 1, 1, 1, 1}), "0@0 1@1 2-3@1 4@1");
  EXPECT_EQ(described({0, 1, 0, 1}), "0@0 1@1 2@0 3@1");
  EXPECT_EQ(described({0, 0, 1, 1, 0, 0, 1}), "0-1@0 2-3@1 4-5@0 6@1");
}

TEST(SumTree, PartialSumsCoverAllRanksOnceAndAreMaximal) {
  for (int ranks = 1; ranks <= 6; ++ranks) {
    for (const std::vector<int>& node_of : dealings(ranks)) {
      int next = 0;
      for (const PartialSum& sum : partial_sums(node_of)) {
        EXPECT_EQ(sum.begin, next);
        next = sum.end;
        for (int rank = sum.begin; rank < sum.end; ++rank) {
          EXPECT_EQ(node_of[static_cast<std::size_t>(rank)], sum.node);
        }
      }
      EXPECT_EQ(next, ranks);
      // By the definition of the tree, a subtree whose ranks share a node is part of one partial sum.
      for (int width = 2; width <= 8; width *= 2) {
        for (int begin = 0; begin < ranks; begin += width) {
          const int end = std::min(begin + width, ranks);
          const auto first = node_of.begin();
          if (std::adjacent_find(first + begin, first + end, std::not_equal_to<>()) != first + end) continue;
          EXPECT_TRUE(std::ranges::any_of(
              partial_sums(node_of),
              [&](const PartialSum& sum) { return sum.begin <= begin && end <= sum.end; }))
              << ranks << " ranks: " << described(node_of);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
