// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/hierarchical_collectives.h"

#include <algorithm>

namespace lockstep {
namespace {

// Bytes of a half of a rank's areas. A round's messages between two ranks are a few pieces.
constexpr std::size_t kStagedBytes = std::size_t{512} << 10;
constexpr std::size_t kArrivedBytes = std::size_t{256} << 10;
constexpr int kRoundTag = 3072;  // other tags are MpiExchange's

std::size_t down(std::size_t bytes) { return bytes / kAlignment * kAlignment; }

// Bytes of a rank's share in a round of a reduce_scatter: each rank stages a share for every rank, and a rank
// that drives a part of the largest node sums that part.
std::size_t scatter_bytes_of(const Placement& placement) {
  const auto ranks = static_cast<std::size_t>(placement.size);
  const std::size_t driven = (kArrivedBytes - kAlignment) *
                             static_cast<std::size_t>(placement.smallest_node) /
                             static_cast<std::size_t>(placement.largest_node);
  return down(std::min(kStagedBytes / ranks, driven));
}

// Bytes of a rank's data in a round of an all_gather: a rank that drives a part receives that of all nodes,
// each aligned to a cache line.
std::size_t gather_bytes_of(const Placement& placement) {
  const std::size_t lines = static_cast<std::size_t>(placement.nodes) * kAlignment;
  if (lines >= kArrivedBytes) return 0;
  const std::size_t arriving = (kArrivedBytes - lines) * static_cast<std::size_t>(placement.smallest_node) /
                               static_cast<std::size_t>(placement.size);
  return down(std::min(kStagedBytes, arriving));
}

}  // namespace

HierarchicalCollectives::HierarchicalCollectives(NodeGroup& group, MPI_Comm peers, const Placement& placement,
                                                 const WaitPlace& place)
    : group_(group),
      node_(placement.node),
      nodes_(placement.nodes),
      rank_(placement.rank),
      local_(placement.local_rank),
      parts_(placement.smallest_node),
      part_(peers == MPI_COMM_NULL ? -1 : placement.local_rank),
      largest_node_(static_cast<std::size_t>(placement.largest_node)),
      ranks_of_(static_cast<std::size_t>(placement.nodes)),
      node_of_(placement.node_of),
      terms_(partial_sums(placement.node_of)),
      scatter_bytes_(scatter_bytes_of(placement)),
      gather_bytes_(gather_bytes_of(placement)),
      cast_bytes_(std::min(kStagedBytes, kArrivedBytes * static_cast<std::size_t>(parts_))),
      messages_(peers, kRoundTag, place),
      seen_(static_cast<std::size_t>(group.size())) {
  for (int rank = 0; rank < placement.size; ++rank) {
    std::vector<int>& ranks = ranks_of_[static_cast<std::size_t>(node_of_[static_cast<std::size_t>(rank)])];
    local_of_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(rank);
  }
  std::size_t first = 0;
  for (const PartialSum& term : terms_) {
    const auto ranks = static_cast<std::size_t>(term.end - term.begin);
    ends_.push_back(term.end);
    if (ranks > 1) adds_ = true;
    if (term.node != node_) continue;
    own_terms_.push_back({.first = first, .ranks = ranks});
    first += ranks;
  }
  term_sources_.resize(terms_.size());
}

std::size_t HierarchicalCollectives::staging_bytes() { return 2 * (kStagedBytes + kArrivedBytes); }

bool HierarchicalCollectives::has_room(const Placement& placement) {
  return scatter_bytes_of(placement) > 0 && gather_bytes_of(placement) > 0;
}

std::byte* HierarchicalCollectives::staged(int local, std::size_t round) const {
  return group_.staging(local) + (round_ + round) % 2 * kStagedBytes;
}

std::byte* HierarchicalCollectives::arrived(int local, std::size_t round) const {
  return group_.staging(local) + 2 * kStagedBytes + (round_ + round) % 2 * kArrivedBytes;
}

const std::byte* HierarchicalCollectives::source(int local, std::size_t round, std::size_t at,
                                                 std::size_t place) const {
  const std::byte* seen = seen_[static_cast<std::size_t>(local)];
  return seen != nullptr ? seen + at : staged(local, round) + place;
}

}  // namespace lockstep
