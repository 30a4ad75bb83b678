// SPDX-License-Identifier: Apache-2.0
//
// What an all-reduce costs in the alpha-beta model: every message costs a latency, every byte its share of a
// link. Closed formulas for a plan, and the messages one by one, which say whether the formulas hold and how
// many messages there are. Pure arithmetic: no clock, no ranks.
//
// Ways between nodes are comm's (comm/world.h). Halving is recursive halving and doubling (Rabenseifner,
// "Optimization of collective reduction operations", ICCS 2004) along a binary tree of the members: two
// neighbouring subtrees that are full pair off. Of a subtree that is not, those who hold its sum give it to
// those who hold the left one's, and take the results back. Direct: everyone sends each other member that
// one's part, and afterwards the sum of its own. Automatic is the shorter of the two. MPI's own has no model:
// who asks for it gets an Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "comm/world.h"

namespace lockstep {

// What joins the ranks of a node, or the nodes.
struct Tier {
  double latency_seconds = 0;   // of a message
  double bytes_per_second = 0;  // each way at once, of one member's link
  double seconds_per_byte = 0;  // of copying and adding what was sent, on any link
};

// Messages one after the other, and what the member that has most to do sends, as a multiple of the data; it
// gets as much.
struct AllReducePath {
  double messages = 0;
  double volume = 0;
};
// Automatic: of large data, the way that sends less; halving where both send as much.
AllReducePath all_reduce_path(int members, AllReduceWay way);
// Of data in many pieces, so that both ways of every link are busy.
double all_reduce_seconds(double bytes, int members, AllReduceWay way, const Tier& tier);

// Nodes that have equally many ranks. Ranks of a node meet everyone directly, as in shared memory or NVLink.
struct Cluster {
  int ranks_per_node = 1;
  int nodes = 1;
  Tier in_node;
  Tier between_nodes;                  // a node's link, which its ranks share
  std::optional<Tier> beside_compute;  // the same while ranks compute; nothing: no other
  AllReduceWay way = AllReduceWay::automatic;

  int ranks() const { return ranks_per_node * nodes; }
};
// Pieces that are reduced in the node, travel between nodes, and are handed out in the node at the same time:
// the slower tier counts.
double all_reduce_seconds(double bytes, const Cluster& cluster);
// What a rank sends of it to the others of its node, and as its share of what the node sends to others.
double all_reduce_sent_bytes(double bytes, const Cluster& cluster);

// An all-reduce message by message, in one piece: as long as the formula says for powers of two, longer for
// others.
struct AllReduceRun {
  double seconds = 0;           // until the last member has the sum
  std::int64_t messages = 0;    // of all members
  std::int64_t most_sent = 0;   // messages of the member that sends most
  double most_bytes = 0;        // of the member that sends most
  std::size_t state_bytes = 0;  // that simulating takes for each member
};
// begin_seconds: when each member joins; empty: all at 0.
AllReduceRun simulate_all_reduce(double bytes, int members, AllReduceWay way, const Tier& tier,
                                 std::span<const double> begin_seconds = {});

}  // namespace lockstep
