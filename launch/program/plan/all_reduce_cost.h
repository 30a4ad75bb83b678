// SPDX-License-Identifier: Apache-2.0
//
// The cost of an all-reduce in the alpha-beta model: a latency for each message and a time for each byte.
// Closed formulas serve a plan; a simulation of the single messages checks the formulas and counts the
// messages. Pure arithmetic: no clock, no ranks.
//
// The algorithms between nodes are those of AllReduceWay (comm/world.h). Halving is recursive halving and
// doubling (Rabenseifner, "Optimization of collective reduction operations", ICCS 2004) along a binary tree
// of the members: the members of two neighbouring full subtrees exchange in pairs. The members that hold the
// sum of an incomplete subtree send it to the members of the left subtree, and receive the results later.
// Direct: each member sends each peer the peer's part, then the sum of its own part. Automatic is the faster
// of the two. MPI's own all-reduce has no model: AllReduceWay::mpi throws Error.
#pragma once

#include <cstdint>
#include <optional>

#include "comm/world.h"
#include "launch/program/plan/nccl_cost.h"

namespace lockstep {

// The link between the ranks of a node, or between nodes.
struct Tier {
  double latency_seconds = 0;   // of a message
  double bytes_per_second = 0;  // of one member's link, in each direction at once
  double seconds_per_byte = 0;  // to copy and add each sent byte, at any link speed
};

// The number of sequential messages, and the volume that the busiest member sends, as a multiple of the data.
// It receives the same volume.
struct AllReducePath {
  double messages = 0;
  double volume = 0;
};
// Automatic: the way with the smaller volume, halving on a tie.
AllReducePath all_reduce_path(int members, AllReduceWay way);
// Data travels in many pieces, so that both directions of every link are busy.
double all_reduce_seconds(double bytes, int members, AllReduceWay way, const Tier& tier);

// Nodes with an equal number of ranks. Ranks of a node exchange directly, as in shared memory, or by NCCL.
struct Cluster {
  int ranks_per_node = 1;
  int nodes = 1;
  Tier in_node;
  Tier between_nodes;                  // a node's link, shared by its ranks
  std::optional<Tier> beside_compute;  // while ranks compute; nullopt: as between_nodes
  AllReduceWay way = AllReduceWay::automatic;
  std::optional<NcclLinks> nccl;  // sums by NCCL; the tiers and the way are then not used

  int ranks() const { return ranks_per_node * nodes; }
};
// The cluster's nodes as NCCL's model takes them. Requires cluster.nccl.
GpuNodes gpu_nodes(const Cluster& cluster);
// Pieces are reduced in the node, sent between nodes and distributed in the node at the same time: the slower
// tier determines the time. With cluster.nccl, the time of NCCL's fastest algorithm.
double all_reduce_seconds(double bytes, const Cluster& cluster);
// Bytes that a rank sends to its peers in the node, plus its share of the bytes that its node sends. With
// cluster.nccl, the bytes of a ring.
double all_reduce_sent_bytes(double bytes, const Cluster& cluster);

// An all-reduce in one piece, simulated message by message. For a power of two of members it takes as long as
// the formula predicts, for other numbers longer.
struct AllReduceRun {
  double seconds = 0;          // until the last member has the sum
  std::int64_t messages = 0;   // of all members
  std::int64_t most_sent = 0;  // messages of the member that sends most
};
AllReduceRun simulate_all_reduce(double bytes, int members, AllReduceWay way, const Tier& tier);

}  // namespace lockstep
