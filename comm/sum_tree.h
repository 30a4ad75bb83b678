// SPDX-License-Identifier: Apache-2.0
//
// The one tree along which the CPU adds up ranks, wherever they run: of eight ranks
//
//   ((0+1)+(2+3))+((4+5)+(6+7))
//
// and of a number that is no power of two the tree of the next power of two without the leaves that it has
// not: (0+1)+2, ((0+1)+(2+3))+(4+5). Ranks are those of the whole world, so a sum has the same bits on any
// number of nodes. What a node may add up by itself are the subtrees whose ranks are all its own.
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

// The largest subtrees that lie on one node each, in the order of ranks: every rank is in one. Where nodes
// hold consecutive ranks, as many each and a power of two, they are as many as nodes; where no two ranks of
// a pair share a node, as many as ranks.
std::vector<PartialSum> partial_sums(std::span<const int> node_of);

}  // namespace lockstep
