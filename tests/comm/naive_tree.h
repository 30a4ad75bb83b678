// SPDX-License-Identifier: Apache-2.0
//
// The sum over ranks from the definition of its tree: each level adds pairs of neighbours; an element without
// a neighbour moves up unchanged.
#pragma once

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

namespace lockstep {

// Combines at(0), ..., at(ranks - 1). ranks is at most kMost.
template <std::size_t kMost = 8, typename At, typename Combine>
auto naive_tree(int ranks, At at, Combine combine) {
  std::array<decltype(at(0)), kMost> sums = {};
  for (int rank = 0; rank < ranks; ++rank) sums[static_cast<std::size_t>(rank)] = at(rank);
  for (auto left = static_cast<std::size_t>(ranks); left > 1; left = (left + 1) / 2) {
    for (std::size_t k = 0; k < left; k += 2) {
      sums[k / 2] = k + 1 < left ? combine(sums[k], sums[k + 1]) : sums[k];
    }
  }
  return sums[0];
}

// Every assignment of ranks to nodes: for each rank, the lowest rank on its node.
inline std::vector<std::vector<int>> dealings(int ranks) {
  std::vector<std::vector<int>> all = {{}};
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<std::vector<int>> longer;
    for (const std::vector<int>& leaders : all) {
      for (int leader = 0; leader <= rank; ++leader) {
        const bool leads = leader == rank || leaders[static_cast<std::size_t>(leader)] == leader;
        if (!leads) continue;
        longer.push_back(leaders);
        longer.back().push_back(leader);
      }
    }
    all = std::move(longer);
  }
  return all;
}

}  // namespace lockstep
