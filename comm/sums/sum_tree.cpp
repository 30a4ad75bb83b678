// SPDX-License-Identifier: Apache-2.0
#include "comm/sums/sum_tree.h"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace lockstep {
namespace {

// Collects the sums of the subtree with `width` leaves from rank `begin` on; leaves past the last rank are
// missing.
void collect(std::span<const int> node_of, std::size_t begin, std::size_t width,
             std::vector<PartialSum>& sums) {
  if (begin >= node_of.size()) return;
  const std::size_t end = std::min(begin + width, node_of.size());
  const int node = node_of[begin];
  const auto ranks = node_of.subspan(begin, end - begin);
  if (std::ranges::all_of(ranks, [node](int other) { return other == node; })) {
    sums.push_back({.begin = static_cast<int>(begin), .end = static_cast<int>(end), .node = node});
    return;
  }
  collect(node_of, begin, width / 2, sums);
  collect(node_of, begin + width / 2, width / 2, sums);
}

}  // namespace

std::vector<PartialSum> partial_sums(std::span<const int> node_of) {
  std::vector<PartialSum> sums;
  collect(node_of, 0, std::bit_ceil(node_of.size()), sums);
  return sums;
}

}  // namespace lockstep
