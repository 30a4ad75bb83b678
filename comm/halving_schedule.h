// SPDX-License-Identifier: Apache-2.0
//
// The sum over nodes by recursive halving and doubling, as a plan: who sends what to whom, along the tree of
// comm/sum_tree.h over nodes. Of eight nodes with the data 0 .. 8 node 1 does
//
//   distance 1   exchange with 0: sends 0 .. 4, adds its 4 .. 8          holds (0+1) of 4 .. 8
//   distance 2   exchange with 3: sends 4 .. 6, adds its 6 .. 8          holds (0+1)+(2+3) of 6 .. 8
//   distance 4   exchange with 5: sends 6 .. 7, adds its 7 .. 8          holds the sum of 7 .. 8
//
// and the same backwards with results. So a node sends 2S(n-1)/n bytes in 2 log2 n messages, and what is
// added at each distance are two neighbouring subtrees, the lower on the left.
//
// Where the right of two neighbouring subtrees is not full, its nodes cannot pair off with those of the left:
// who holds a stretch of its sum gives it to those who hold that stretch of the left's, and takes the results
// back. Of three nodes 0 and 1 hold (0+1) of a half each, and node 2 gives its data to both. All these are
// fewer messages than nodes at each distance, so all nodes together send O(n log n) messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/sum_tree.h"

namespace lockstep {

// Of elements.
struct Stretch {
  std::size_t begin = 0;
  std::size_t end = 0;

  std::size_t size() const { return end - begin; }
  bool operator==(const Stretch&) const = default;
};

// One distance on the way to the sum. On the way back the same messages go the other way, with results.
struct HalvingStep {
  enum class Kind : std::uint8_t {
    exchange,  // both send half of what they hold
    give,      // to several, who add all of it
    take,      // from one, and add it
  };
  Kind kind = Kind::exchange;
  bool lower = true;  // whether this node's sum is the left one
  bool leaf = true;   // whether what travels has not been added up yet: the data of one node
  int halvings = 0;   // of the data, to get what this node holds before
  int peer = 0;       // the first of them
  int stride = 0;     // from one to the next
  int peers = 1;
};

// In their order, of node `node` of `nodes`: log2(nodes) at most, whatever the data.
std::vector<HalvingStep> halving_schedule(int node, int nodes);

// What is left of `count` elements when a node has halved what it holds so often. Halves are whole cache
// lines of fp32, so that some are empty where there is little.
Stretch halved(int node, int halvings, std::size_t count);

// On the way to the sum: what goes to the k-th of a step's peers, and what node `node` gets in it from each;
// empty: nothing. On the way back the other way round.
Stretch sent_to(const HalvingStep& step, int k, std::size_t count);
Stretch received_by(const HalvingStep& step, int node, std::size_t count);

// Whether sums of these terms, which nodes numbered from 0 bring, are sums over nodes: one each, in their
// order, and the terms' tree is the nodes'.
bool one_term_of_each(std::span<const PartialSum> terms, int nodes);

}  // namespace lockstep
