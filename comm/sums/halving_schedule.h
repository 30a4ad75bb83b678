// SPDX-License-Identifier: Apache-2.0
//
// The sum over nodes by recursive halving and doubling, as a plan of messages along the tree of
// comm/sums/sum_tree.h over nodes. With eight nodes and the data 0 .. 8, node 1 does:
//
//   distance 1   exchange with 0: sends 0 .. 4, adds its 4 .. 8          holds (0+1) of 4 .. 8
//   distance 2   exchange with 3: sends 4 .. 6, adds its 6 .. 8          holds (0+1)+(2+3) of 6 .. 8
//   distance 4   exchange with 5: sends 6 .. 7, adds its 7 .. 8          holds the sum of 7 .. 8
//
// Results return in the reverse order. So a node sends 2S(n-1)/n bytes in 2 log2 n messages. Each distance
// adds two neighbouring subtrees, the lower one on the left.
//
// If the right one of two neighbouring subtrees is not full, its nodes cannot pair up with those of the left:
// each node that holds a part of its sum sends it to the nodes that hold that part of the left sum, and
// receives the results back. Of three nodes 0 and 1 hold (0+1) of a half each, and node 2 sends its data to
// both. At each distance these are fewer messages than nodes, so all nodes together send O(n log n) messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/sums/sum_tree.h"

namespace lockstep {

// A range of elements.
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
    give,      // sends to several peers, which add it
    take,      // receives from one peer, and adds it
  };
  Kind kind = Kind::exchange;
  bool lower = true;  // true if this node's sum is the left one
  bool leaf = true;   // true if the data sent is that of one node, not yet a sum
  int halvings = 0;   // halvings of the data that give what this node holds before the step
  int peer = 0;       // the first peer
  int stride = 0;     // distance between peers
  int peers = 1;
};

// The steps of node `node` of `nodes`, in order: at most log2(nodes), rounded up.
std::vector<HalvingStep> halving_schedule(int node, int nodes);

// The part of `count` elements that a node holds after `halvings` halvings. Halves are whole cache lines of
// fp32, so some are empty if `count` is small.
Stretch halved(int node, int halvings, std::size_t count);

// On the way to the sum: what the k-th of a step's peers gets, and what node `node` gets from each peer;
// empty: nothing. On the way back the roles are swapped.
Stretch sent_to(const HalvingStep& step, int k, std::size_t count);
Stretch received_by(const HalvingStep& step, int node, std::size_t count);

// True if term k is the data of node k, one term per node from 0 in order, and the tree of the terms is the
// tree over nodes.
bool one_term_of_each(std::span<const PartialSum> terms, int nodes);

}  // namespace lockstep
