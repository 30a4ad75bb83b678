// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "comm/mpi/hierarchical_collectives.h"
#include "comm/mpi/rounds.h"
#include "core/timeline.h"

namespace lockstep {

// An all_gather; sizes are in bytes.
struct HierarchicalCollectives::Gather {
  const std::byte* send;
  std::byte* recv;
  std::size_t count;  // of each rank
  std::size_t most;
  int parts;

  std::size_t in_round(std::size_t round) const { return std::min(most, count - round * most); }
  Partition partition(std::size_t round, std::size_t ranks) const {
    return Partition::even(ranks * in_round(round), parts, 1);
  }
};

std::int64_t HierarchicalCollectives::all_gather(const void* send, void* recv, std::size_t count,
                                                 DType dtype) {
  const Gather gather{.send = static_cast<const std::byte*>(send),
                      .recv = static_cast<std::byte*>(recv),
                      .count = count * size_of(dtype),
                      .most = gather_bytes_,
                      .parts = parts_};
  const std::size_t rounds = rounds_of(gather.count, gather.most);
  std::int64_t met_ns = 0;
  source_ = group_.find(send, gather.count);
  for (std::size_t step = 0; step < rounds + 2; ++step) {
    const bool on_the_wire = step >= 1 && step <= rounds && drives();
    if (on_the_wire) begin_gather(gather, step - 1);
    if (step < rounds && stages())
      std::memcpy(staged(local_, step), gather.send + step * gather.most, gather.in_round(step));
    if (step >= 1 && step <= rounds) take_own_node(gather, step - 1);
    if (step >= 2) take_other_nodes(gather, step - 2);
    if (on_the_wire) messages_.finish();
    if (step == 0) {
      meet({.kind = CollectiveKind::all_gather, .dtype = dtype, .count = count});
    } else if (step <= rounds) {
      group_.barrier();
    }
    if (step == 1) met_ns = now_ns();  // the ranks that drive parts have heard from all nodes
  }
  round_ += rounds;
  std::byte* const own = gather.recv + static_cast<std::size_t>(rank_) * gather.count;
  if (own != gather.send) std::memcpy(own, gather.send, gather.count);
  shared_bytes_ += gather.count * (ranks_on(node_) - 1);
  return met_ns;
}

// The data received from each node follows that of the nodes before it.
void HierarchicalCollectives::begin_gather(const Gather& gather, std::size_t round) {
  const std::size_t each = gather.in_round(round);
  std::byte* to = arrived(local_, round);
  for (int node = 0; node < nodes_; ++node) {
    if (node == node_) continue;
    const Partition partition = gather.partition(round, ranks_on(node));
    for_each_stretch(partition.begin(part_), partition.begin(part_ + 1), each,
                     [&](int, std::size_t, std::size_t bytes, std::size_t before) {
                       messages_.receive(to + before, bytes, node);  // in the pieces in which it is sent
                     });
    to += align_up(partition.size(part_));
    shared_bytes_ += partition.size(part_) * (ranks_on(node_) - 1);
  }
  const Partition partition = gather.partition(round, ranks_on(node_));
  for_each_other_node([&](int node) {
    for_each_stretch(partition.begin(part_), partition.begin(part_ + 1), each,
                     [&](int local, std::size_t at, std::size_t bytes, std::size_t) {
                       messages_.send(source(local, round, round * gather.most + at, at), bytes, node);
                     });
    messages_.move_on();
  });
}

void HierarchicalCollectives::take_own_node(const Gather& gather, std::size_t round) {
  const std::size_t at = round * gather.most;
  for (int k = 1; k < group_.size(); ++k) {
    const int local = (local_ + k) % group_.size();
    const auto rank = static_cast<std::size_t>(ranks_of(node_)[static_cast<std::size_t>(local)]);
    std::memcpy(gather.recv + rank * gather.count + at, source(local, round, at, 0), gather.in_round(round));
    if (drives()) messages_.move_on();
  }
}

void HierarchicalCollectives::take_other_nodes(const Gather& gather, std::size_t round) {
  for (int k = 0; k < parts_; ++k) {
    const int part = (local_ + k) % parts_;
    const std::byte* from = arrived(part, round);
    for (int node = 0; node < nodes_; ++node) {
      if (node == node_) continue;
      const Partition partition = gather.partition(round, ranks_on(node));
      for_each_stretch(
          partition.begin(part), partition.begin(part + 1), gather.in_round(round),
          [&](int local, std::size_t at, std::size_t bytes, std::size_t before) {
            const auto rank = static_cast<std::size_t>(ranks_of(node)[static_cast<std::size_t>(local)]);
            std::memcpy(gather.recv + rank * gather.count + round * gather.most + at, from + before, bytes);
          });
      from += align_up(partition.size(part));
      if (drives()) messages_.move_on();
    }
  }
}

}  // namespace lockstep
