// SPDX-License-Identifier: Apache-2.0
//
// NodeCollectives: collectives of ranks that all share one node's memory, for data wherever it lies. What
// lies in windows is read there by whoever needs it. Everything else passes through the ranks' staging areas
// in rounds: a round is written there before a barrier and read behind it, and while it is read the next one
// is written to the other half, so that each round costs one barrier. Sums are taken along the tree of
// comm/sum_tree.h, as everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/collective.h"
#include "comm/mpi/node_group.h"
#include "comm/partition.h"

namespace lockstep {

class NodeCollectives {
 public:
  // Both outlive this. windows: in which data may lie; the same on all ranks.
  NodeCollectives(NodeGroup& group, const std::vector<std::shared_ptr<NodeWindow>>& windows);
  // Of each rank's staging area.
  static std::size_t staging_bytes(int ranks);
  // Up to here data is staged wherever it lies: it takes one barrier, and to read it in a window two.
  static constexpr std::size_t kSmallBytes = std::size_t{8} << 10;

  // As in Communicator. They return when all ranks were known to be there, by now_ns(); throw GaveUp.
  std::int64_t all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op);
  std::int64_t reduce_scatter(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op);
  std::int64_t all_gather(const void* send, void* recv, std::size_t count, DType dtype);
  std::int64_t all_to_all(const void* send, void* recv, std::size_t count, DType dtype);
  std::int64_t broadcast(void* data, std::size_t count, DType dtype, int root);
  std::int64_t barrier();

  // What others read of this rank's data.
  std::uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Sum;  // an all_reduce in rounds

  // Where others can read this data; nowhere, when it is to be staged.
  NodeGroup::Source find(const void* data, std::size_t bytes) const;
  // Returns when all were there. They have shown where their data lies: seen_ is set.
  std::int64_t meet(const Collective& collective, const NodeGroup::Source& source = {});
  // Of a reduce_scatter or all_to_all: the parts of `send` from byte `at` on, up to `bytes` of each, where
  // their ranks find them; a part's place in the staging area is place_bytes().
  void stage_parts(const void* send, std::size_t part_bytes, std::size_t at, std::size_t bytes);
  std::size_t place_bytes() const;
  // This rank's part from byte `at` on as that rank brings it: where it lies, or staged.
  const std::byte* part_of(int rank, const void* own, std::size_t part_bytes, std::size_t at) const;
  // Nobody reads what another rank showed any more.
  void leave();
  // This round's half of a rank's staging area, or the last's; and where it leaves results of a sum.
  std::byte* staged(int rank, std::size_t round) const {
    return group_.staging(rank) + round % 2 * round_bytes_;
  }
  std::byte* summed(int rank, std::size_t round) const;
  std::int64_t all_reduce_in_rounds(const Collective& collective);
  void stage(const Sum& sum, std::size_t chunk);
  void add_part(const Sum& sum, std::size_t chunk);
  void take_parts(const Sum& sum, std::size_t chunk);
  // body(rank) for all others, this rank's successor first, so that not all read from the same one.
  template <typename Body>
  void for_each_other(Body body) const {
    for (int k = 1; k < size_; ++k) body((rank_ + k) % size_);
  }
  std::uint64_t to_others(std::size_t bytes) const { return bytes * static_cast<std::uint64_t>(size_ - 1); }

  NodeGroup& group_;
  const std::vector<std::shared_ptr<NodeWindow>>& windows_;
  int rank_;
  int size_;
  std::size_t round_bytes_;
  std::size_t round_ = 0;               // the next one, counted from the first collective on
  std::vector<const std::byte*> seen_;  // each rank's data where it lies; null: it is staged
  std::vector<const void*> sources_;
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace lockstep
