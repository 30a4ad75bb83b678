// SPDX-License-Identifier: Apache-2.0
#include "comm/job/placement.h"

#include <algorithm>

namespace lockstep {

Placement place_ranks(int rank, std::span<const int> nodes) {
  Placement placement{.rank = rank, .size = static_cast<int>(nodes.size()), .node_of = {}};
  std::vector<int> known;  // by node
  std::vector<int> ranks_on;
  for (const int name : nodes) {
    const auto node = static_cast<std::size_t>(std::ranges::find(known, name) - known.begin());
    if (node == known.size()) {
      known.push_back(name);
      ranks_on.push_back(0);
    }
    if (static_cast<int>(placement.node_of.size()) == rank) placement.local_rank = ranks_on[node];
    placement.node_of.push_back(static_cast<int>(node));
    ++ranks_on[node];
  }
  placement.nodes = static_cast<int>(known.size());
  placement.node = placement.node_of[static_cast<std::size_t>(rank)];
  placement.local_size = ranks_on[static_cast<std::size_t>(placement.node)];
  placement.smallest_node = std::ranges::min(ranks_on);
  placement.largest_node = std::ranges::max(ranks_on);
  return placement;
}

}  // namespace lockstep
