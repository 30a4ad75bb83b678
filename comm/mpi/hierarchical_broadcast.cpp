// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cstring>

#include "comm/mpi/hierarchical_collectives.h"
#include "comm/mpi/rounds.h"

namespace lockstep {

// A broadcast; sizes are in bytes. The root's node is the first in a chain, or, if there is one round only,
// in a binomial tree.
struct HierarchicalCollectives::Cast {
  std::byte* data;
  std::size_t count;
  std::size_t most;
  int parts;
  std::size_t rounds;
  int root_node;
  int root_local;
  int nodes;
  int place;  // of this node, counted from the root's

  Partition partition(std::size_t round) const {
    return Partition::even(std::min(most, count - round * most), parts, 1);
  }
  int node_at(int of) const { return (root_node + of) % nodes; }
  bool is_chain() const { return rounds > 1; }
  int parent() const {
    const int reach = static_cast<int>(std::bit_floor(static_cast<unsigned>(place)));
    return node_at(is_chain() ? place - 1 : place - reach);
  }
  template <typename Body>
  void for_each_child(Body body) const {
    if (is_chain()) {
      if (place + 1 < nodes) body(node_at(place + 1));
      return;
    }
    int reach = 1;  // places below it have the data when this node starts to send
    while (reach <= place) reach *= 2;
    for (; place + reach < nodes; reach *= 2) body(node_at(place + reach));
  }
};

// The root stages a round, or the round arrives, before a barrier; after it ranks copy it out and pass it on.
void HierarchicalCollectives::broadcast(void* data, std::size_t count, DType dtype, int root) {
  const std::size_t bytes = count * size_of(dtype);
  const int root_node = node_of_[static_cast<std::size_t>(root)];
  const Cast cast{.data = static_cast<std::byte*>(data),
                  .count = bytes,
                  .most = cast_bytes_,
                  .parts = parts_,
                  .rounds = rounds_of(bytes, cast_bytes_),
                  .root_node = root_node,
                  .root_local = local_of_[static_cast<std::size_t>(root)],
                  .nodes = nodes_,
                  .place = (node_ - root_node + nodes_) % nodes_};
  source_ = {};  // always staged: the root need not wait for the readers
  for (std::size_t step = 0; step < cast.rounds + 1; ++step) {
    if (drives()) begin_cast(cast, step);
    if (step < cast.rounds && rank_ == root) {
      const std::size_t staging = std::min(cast.most, bytes - step * cast.most);
      std::memcpy(staged(local_, step), cast.data + step * cast.most, staging);
      shared_bytes_ += staging * (ranks_on(node_) - 1);
    }
    if (step > 0 && rank_ != root) take_cast(cast, step - 1);
    if (drives()) messages_.finish();
    if (step == 0) {
      meet({.kind = CollectiveKind::broadcast, .dtype = dtype, .root = root, .count = count});
    } else if (step < cast.rounds) {
      group_.barrier();
    }
  }
  round_ += cast.rounds;
}

void HierarchicalCollectives::begin_cast(const Cast& cast, std::size_t step) {
  if (cast.place > 0 && step < cast.rounds) {
    const std::size_t bytes = cast.partition(step).size(part_);
    messages_.receive(arrived(local_, step), bytes, cast.parent());
    shared_bytes_ += bytes * (ranks_on(node_) - 1);
  }
  if (step == 0) return;
  const Partition partition = cast.partition(step - 1);
  const std::byte* from =
      cast.place > 0 ? arrived(local_, step - 1) : staged(cast.root_local, step - 1) + partition.begin(part_);
  cast.for_each_child([&](int node) { messages_.send(from, partition.size(part_), node); });
}

void HierarchicalCollectives::take_cast(const Cast& cast, std::size_t round) {
  const Partition partition = cast.partition(round);
  std::byte* const to = cast.data + round * cast.most;
  if (cast.place == 0) return void(std::memcpy(to, staged(cast.root_local, round), partition.count));
  for (int part = 0; part < parts_; ++part) {
    const std::size_t bytes = partition.size(part);
    if (bytes > 0) std::memcpy(to + partition.begin(part), arrived(part, round), bytes);
    if (drives()) messages_.move_on();
  }
}

}  // namespace lockstep
