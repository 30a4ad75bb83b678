// SPDX-License-Identifier: Apache-2.0
//
// The one tree along which the CPU adds ranks, wherever they run. For eight ranks:
//
//   ((0+1)+(2+3))+((4+5)+(6+7))
//
// For a number that is no power of two it is the tree of the next power of two without the missing leaves:
// (0+1)+2, ((0+1)+(2+3))+(4+5). Ranks are those of the whole world, so a sum has the same bits on any number
// of nodes. A node can add by itself the subtrees whose ranks are all its own.
#pragma once

#include <span>
#include <vector>

namespace lockstep {

// The sum of ranks begin, ..., end - 1, which make up a subtree and lie on one node.
struct PartialSum {
  int begin = 0;
  int end = 0;
  int node = 0;

  bool operator==(const PartialSum&) const = default;
};

// The largest subtrees that lie on one node each, in rank order: every rank is in one. If each node holds the
// same power of two of consecutive ranks, there is one per node; if no two ranks of a pair share a node, one
// per rank.
std::vector<PartialSum> partial_sums(std::span<const int> node_of);

}  // namespace lockstep
