// SPDX-License-Identifier: Apache-2.0
//
// MpiExchange: collectives over point-to-point messages. Each rank reduces its own part of the data in rank
// order and sends it to all: two messages to each peer, every byte once in each direction, and a result that
// depends neither on the number of ranks nor on how the data was split. Messages and staging memory are
// bounded; nothing is allocated after construction. Used by the communicator's worker thread only.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include <mpi.h>

#include "comm/mpi/session.h"
#include "comm/partition.h"
#include "comm/reduce.h"
#include "core/buffer.h"

namespace lockstep {

class MpiExchange {
 public:
  struct Options {
    // The order in which ranks are summed; empty: ascending.
    std::vector<int> order = {};
    std::size_t group = 0;  // see Reduction
  };

  // communicator, session and broken outlive this. Once `broken` is set, waiting throws.
  MpiExchange(MPI_Comm communicator, Options options, MpiSession& session, const std::atomic<bool>& broken);

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::uint64_t sent_bytes() const { return sent_bytes_; }
  std::size_t staging_bytes() const { return staging_.bytes(); }

  void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op);
  // send holds partition.count elements of reduction.from; recv takes this rank's part, of reduction.to. recv
  // may be that part's place in send when the types are the same. reduction.group is set here.
  void reduce_scatter(const Partition& partition, const void* send, void* recv, Reduction reduction);
  // Every rank's part, its own already in place.
  void all_gather(const Partition& partition, void* data, std::size_t element_bytes);
  void broadcast(void* data, std::size_t bytes, int root);
  void barrier();

 private:
  void all_reduce_small(void* data, std::size_t count, DType dtype, ReduceOp op);
  // One reduction of what lies in the slots, with this rank's own elements.
  void reduce_slots(const void* own, void* destination, std::size_t count, std::size_t slot_bytes,
                    const Reduction& reduction);
  int peer(int distance) const { return (rank_ + distance) % size_; }
  std::byte* slot(int peer, std::size_t slot_bytes) const;
  void send(const void* data, std::size_t bytes, int to);
  void receive(void* data, std::size_t bytes, int from);
  // Until all messages since the last wait() are through.
  void wait();

  MPI_Comm communicator_;
  MpiSession& session_;
  const std::atomic<bool>& broken_;
  int rank_ = 0;
  int size_ = 1;
  std::vector<int> order_;
  std::size_t group_;
  Buffer staging_;  // a slot for each peer
  std::vector<const void*> sources_;
  std::vector<MPI_Request> requests_;
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace lockstep
