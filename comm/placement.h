// SPDX-License-Identifier: Apache-2.0
//
// Placement: where the ranks of a communicator are: which of them share a node.
#pragma once

#include <span>
#include <vector>

namespace lockstep {

struct Placement {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this node
  int local_size = 1;
  int node = 0;  // numbered by their lowest rank
  int nodes = 1;
  std::vector<int> node_of;  // by rank
  int smallest_node = 1;     // ranks on it
  int largest_node = 1;
};

// Of a rank, given for each rank what its node is known by: its lowest rank, or any number that only its
// ranks have. Nodes are numbered by their lowest rank.
Placement place_ranks(int rank, std::span<const int> nodes);

}  // namespace lockstep
