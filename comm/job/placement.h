// SPDX-License-Identifier: Apache-2.0
//
// Placement: which ranks of a communicator share a node.
#pragma once

#include <span>
#include <vector>

namespace lockstep {

struct Placement {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this node
  int local_size = 1;
  int node = 0;  // nodes are numbered by their lowest rank
  int nodes = 1;
  std::vector<int> node_of;  // node of each rank
  int smallest_node = 1;     // ranks on the smallest node
  int largest_node = 1;
};

// The placement of `rank`. nodes: a number for each rank that is equal exactly for ranks of one node, such as
// the node's lowest rank. Nodes are renumbered by their lowest rank.
Placement place_ranks(int rank, std::span<const int> nodes);

}  // namespace lockstep
