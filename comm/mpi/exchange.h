// SPDX-License-Identifier: Apache-2.0
//
// MpiExchange: collectives over point-to-point messages. Each rank reduces its own part of the data along the
// tree (comm/sum_tree.h) and sends it to all: every term of a sum goes once to the owner of each part, every
// result once to everybody, and its bits do not depend on how the data was split. A rank brings one term, or
// several where it speaks for a node. Messages and staging memory are bounded; nothing is allocated after
// construction. Used by the communicator's worker thread only.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <mpi.h>

#include "comm/mpi/piece_flow.h"
#include "comm/mpi/session.h"
#include "comm/partition.h"
#include "comm/reduce.h"
#include "comm/sum_tree.h"
#include "core/buffer.h"

namespace lockstep {

class MpiExchange {
 public:
  // Every sum is of these terms; the rank of the communicator that brings one is its `node`. communicator and
  // place outlive this.
  MpiExchange(MPI_Comm communicator, std::span<const PartialSum> terms, Link link, const WaitPlace& place);

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::uint64_t sent_bytes() const { return sent_bytes_ + pieces_.sent_bytes(); }
  std::size_t staging_bytes() const { return staging_.bytes() + pieces_.memory_bytes(); }

  // These return when all ranks were known to be there, by now_ns(), as early as this rank can tell: what
  // arrived from one of them was sent in this collective. 0: it cannot.

  // Where every rank brings one term: data.
  std::int64_t all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op);
  // ends brings this rank's terms, of reduction.from, and hears of what lies in result, of reduction.to; a
  // term may lie in the result's place when the types are the same.
  std::int64_t all_reduce(std::size_t count, PieceEnds& ends, void* result, const Reduction& reduction);
  // Of PieceEnds: see PieceFlow.
  std::size_t places() const { return pieces_.places(); }
  std::size_t place_bytes() const { return pieces_.place_bytes(); }
  // own points to this rank's terms in their order, partition.count elements of reduction.from each;
  // recv takes this rank's part, and may be that part's place in a term when the types are the same.
  std::int64_t reduce_scatter(const Partition& partition, std::span<const void* const> own, void* recv,
                              const Reduction& reduction);
  // Every rank's part, its own already in place. Where parts are empty, nothing is heard of their owners.
  std::int64_t all_gather(const Partition& partition, void* data, std::size_t element_bytes);
  std::int64_t barrier();
  // Nobody hears of all the others.
  void broadcast(void* data, std::size_t bytes, int root);

 private:
  std::int64_t all_reduce_small(void* data, std::size_t count, DType dtype, ReduceOp op);
  void send(const void* data, std::size_t bytes, int to);
  void receive(void* data, std::size_t bytes, int from);
  // Until all messages since the last wait() are through. Throws GaveUp.
  void wait();

  MPI_Comm communicator_;
  Link link_;
  const WaitPlace& place_;
  int rank_ = 0;
  int size_ = 1;
  Buffer staging_;  // of what ranks bring to a small sum, a place for each
  std::vector<const void*> sources_;
  std::vector<MPI_Request> requests_;
  std::uint64_t sent_bytes_ = 0;
  PieceFlow pieces_;
};

}  // namespace lockstep
