// SPDX-License-Identifier: Apache-2.0
//
// HierarchicalCollectives: reduce_scatter, all_gather and broadcast of ranks on several nodes, of which some
// share one. A node's data, or its partial sums, cross the wire once to each other node, however many ranks
// it has: local rank l drives part l, with local rank l of the others; there are as many parts as ranks on
// the smallest node. In a node data passes through the ranks' staging areas, or is read in place if it is in
// a window. Data goes in rounds: while one is on the wire the next is staged and the last is copied out; each
// costs one barrier. Sums are taken along the one tree (comm/sums/sum_tree.h).
//
// Each rank has two areas of two halves, which rounds use in turns: `staged` holds the data it contributes,
// `arrived` the part it drives, as received from other nodes or as a sum. A barrier separates any two uses of
// a half, across collectives, too.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <mpi.h>

#include "comm/collective.h"
#include "comm/gradients/partition.h"
#include "comm/job/placement.h"
#include "comm/mpi/node/group.h"
#include "comm/mpi/peer_messages.h"
#include "comm/sums/reduce.h"
#include "comm/sums/sum_tree.h"
#include "core/tensor/buffer.h"

namespace lockstep {

class HierarchicalCollectives {
 public:
  // All outlive this. group: this node's, with an area of staging_bytes() for each rank. peers: the ranks
  // that drive the same part on every node, in the order of nodes; MPI_COMM_NULL if this rank drives none.
  HierarchicalCollectives(NodeGroup& group, MPI_Comm peers, const Placement& placement,
                          const WaitPlace& place);
  static std::size_t staging_bytes();
  // True if a round has room for data of every rank; it has none with some thousand nodes.
  static bool has_room(const Placement& placement);

  // As in Communicator. They return the time (now_ns()) when all ranks were known to have arrived. They throw
  // GaveUp.
  std::int64_t reduce_scatter(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op);
  std::int64_t all_gather(const void* send, void* recv, std::size_t count, DType dtype);
  // Returns no time: ranks do not hear from all others.
  void broadcast(void* data, std::size_t count, DType dtype, int root);

  // Bytes of this rank's data that others read, and bytes that it sent to other nodes.
  std::uint64_t sent_bytes() const { return shared_bytes_ + messages_.sent_bytes(); }
  std::uint64_t wire_bytes() const { return messages_.sent_bytes(); }
  // Without the group's.
  std::size_t memory_bytes() const { return memory_bytes_; }  // any thread

 private:
  struct Scatter;  // a reduce_scatter under way
  struct Gather;
  struct Cast;

  bool drives() const { return part_ >= 0; }
  std::size_t ranks_on(int node) const { return ranks_of_[static_cast<std::size_t>(node)].size(); }
  std::span<const int> ranks_of(int node) const { return ranks_of_[static_cast<std::size_t>(node)]; }

  std::byte* staged(int local, std::size_t round) const;
  std::byte* arrived(int local, std::size_t round) const;
  // Shows the call and source_ to the ranks of the node; sets seen_.
  void meet(const Collective& collective) { group_.meet(collective, source_, seen_); }
  // The address of a local rank's data: byte `at` of its data in a window, or `place` in its staging area.
  const std::byte* source(int local, std::size_t round, std::size_t at, std::size_t place) const;
  bool stages() const { return source_.window == NodeGroup::Source::kNone; }
  // Calls body(node) for all other nodes, this one's successor first, so that not all send to the same one.
  template <typename Body>
  void for_each_other_node(Body body) const {
    for (int k = 1; k < nodes_; ++k) body((node_ + k) % nodes_);
  }

  void stage(const Scatter& scatter, std::size_t round);
  void begin_sums(const Scatter& scatter, std::size_t round);
  void finish_sums(const Scatter& scatter, std::size_t round);
  void take_sums(const Scatter& scatter, std::size_t round);
  // This node's k-th term of this rank's part of what the ranks of `node` get: in place, or computed in
  // `sum`.
  const std::byte* term(const Scatter& scatter, std::size_t round, int node, std::size_t k, std::byte* sum);

  void begin_gather(const Gather& gather, std::size_t round);
  void take_own_node(const Gather& gather, std::size_t round);
  void take_other_nodes(const Gather& gather, std::size_t round);

  void begin_cast(const Cast& cast, std::size_t step);
  void take_cast(const Cast& cast, std::size_t round);

  NodeGroup& group_;
  int node_;
  int nodes_;
  int rank_;
  int local_;
  int parts_;
  int part_;                                // the part that this rank drives; -1: none
  std::size_t largest_node_;                // ranks on it
  std::vector<std::vector<int>> ranks_of_;  // by node
  std::vector<int> node_of_;                // by rank
  std::vector<int> local_of_;
  std::vector<PartialSum> terms_;  // of every sum
  std::vector<int> ends_;
  struct Range {  // of local ranks, whose sum is a term
    std::size_t first;
    std::size_t ranks;
  };
  std::vector<Range> own_terms_;
  bool adds_ = false;          // true if any node adds ranks
  std::size_t scatter_bytes_;  // of each rank's share in a round
  std::size_t gather_bytes_;
  std::size_t cast_bytes_;
  PeerMessages messages_;
  std::size_t round_ = 0;               // number of the next round, over all collectives
  NodeGroup::Source source_;            // where the node's other ranks can read this rank's data
  std::vector<const std::byte*> seen_;  // each local rank's data in a window; null: it is staged
  std::vector<const void*> sources_;    // of a sum
  std::vector<const void*> term_sources_;
  Buffer sums_;                // terms of a reduce_scatter: received, this rank's, and to send
  std::size_t sum_bytes_ = 0;  // of each term
  std::atomic<std::size_t> memory_bytes_{0};
  std::uint64_t shared_bytes_ = 0;
};

}  // namespace lockstep
