// SPDX-License-Identifier: Apache-2.0
//
// NodeCollectives: collectives of ranks that all share one node's memory, for data in any memory. Data in
// windows is read in place. Other data passes through the ranks' staging areas in rounds: a round is written
// before a barrier and read after it, while the next one is written to the other half, so that each round
// costs one barrier. Sums are taken along the tree of comm/sums/sum_tree.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/collective.h"
#include "comm/gradients/partition.h"
#include "comm/mpi/node/group.h"

namespace lockstep {

class NodeCollectives {
 public:
  // group outlives this.
  explicit NodeCollectives(NodeGroup& group);
  // Bytes of each rank's staging area.
  static std::size_t staging_bytes(int ranks);
  // Data up to this size is always staged: this takes one barrier, reading it in a window two.
  static constexpr std::size_t kSmallBytes = std::size_t{8} << 10;

  // As in Communicator. They return the time (now_ns()) when all ranks were known to have arrived. They throw
  // GaveUp.
  std::int64_t all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op);
  std::int64_t reduce_scatter(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op);
  std::int64_t all_gather(const void* send, void* recv, std::size_t count, DType dtype);
  std::int64_t all_to_all(const void* send, void* recv, std::size_t count, DType dtype);
  std::int64_t broadcast(void* data, std::size_t count, DType dtype, int root);
  std::int64_t barrier();

  // Bytes of this rank's data that others read.
  std::uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Sum;  // an all_reduce in rounds

  // Where other ranks can read this data; kNone if it must be staged.
  NodeGroup::Source find(const void* data, std::size_t bytes) const {
    return bytes <= kSmallBytes ? NodeGroup::Source() : group_.find(data, bytes);
  }
  std::int64_t meet(const Collective& collective, const NodeGroup::Source& source = {}) {
    return group_.meet(collective, source, seen_);
  }
  // For reduce_scatter and all_to_all: stages bytes [at, at + bytes) of each other rank's part of `send`. A
  // part's place in the staging area has place_bytes().
  void stage_parts(const void* send, std::size_t part_bytes, std::size_t at, std::size_t bytes);
  std::size_t place_bytes() const;
  // This rank's part of that rank's data, from byte `at` on: in place, or staged.
  const std::byte* part_of(int rank, const void* own, std::size_t part_bytes, std::size_t at) const;
  // Waits until no rank reads another's data in a window any more.
  void leave();
  // A round's half of a rank's staging area, and of its area for results of a sum.
  std::byte* staged(int rank, std::size_t round) const {
    return group_.staging(rank) + round % 2 * round_bytes_;
  }
  std::byte* summed(int rank, std::size_t round) const;
  std::int64_t all_reduce_in_rounds(const Collective& collective);
  void stage(const Sum& sum, std::size_t chunk);
  void add_part(const Sum& sum, std::size_t chunk);
  void take_parts(const Sum& sum, std::size_t chunk);
  // Calls body(rank) for all other ranks, this rank's successor first, so that not all read from the same
  // one.
  template <typename Body>
  void for_each_other(Body body) const {
    for (int k = 1; k < size_; ++k) body((rank_ + k) % size_);
  }
  std::uint64_t to_others(std::size_t bytes) const { return bytes * static_cast<std::uint64_t>(size_ - 1); }

  NodeGroup& group_;
  int rank_;
  int size_;
  std::size_t round_bytes_;
  std::size_t round_ = 0;               // number of the next round, over all collectives
  std::vector<const std::byte*> seen_;  // each rank's data in a window; null: it is staged
  std::vector<const void*> sources_;
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace lockstep
