// SPDX-License-Identifier: Apache-2.0
//
// MpiExchange: collectives over point-to-point messages. Each rank reduces its own part of the data along the
// tree (comm/sums/sum_tree.h) and sends it to all: every term of a sum is sent once to the owner of each
// part, every result once to every rank, and its bits do not depend on how the data was split. A rank
// contributes one term, or several if it sends for a node. On a wire, if every rank contributes one, an
// all_reduce may instead use recursive halving and doubling (comm/sums/halving_schedule.h), with the same
// bits: messages to log2 n others, and memory that does not grow with n. Messages and staging memory are
// bounded. Memory for most sums is allocated by the constructor, other memory when it is first needed. Used
// by one thread at a time.
#pragma once

#include <atomic>
#include <optional>
#include <span>
#include <vector>

#include <mpi.h>

#include "comm/gradients/partition.h"
#include "comm/mpi/block_flow.h"
#include "comm/mpi/halving_flow.h"
#include "comm/mpi/piece_flow.h"
#include "comm/mpi/session.h"
#include "comm/sums/reduce.h"
#include "comm/sums/sum_tree.h"
#include "core/tensor/buffer.h"

namespace lockstep {

class MpiExchange {
 public:
  // terms: those of every sum; the rank of the communicator that contributes one is its `node`. communicator,
  // session (which sets the algorithm on a wire) and place outlive this. shape: of a wire.
  MpiExchange(MPI_Comm communicator, std::span<const PartialSum> terms, Link link, MpiSession& session,
              const WireShape& shape, const WaitPlace& place);

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::uint64_t sent_bytes() const;
  std::size_t staging_bytes() const { return staging_bytes_; }  // any thread

  // These return the earliest time (now_ns()) when this rank knew that all ranks had arrived: what it
  // received from each was sent in this collective. 0: unknown.

  // For one term per rank: data.
  std::int64_t all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op);
  // ends supplies this rank's terms, of reduction.from, and receives deliver() for parts of result, of
  // reduction.to. A term may be in the result's place if the types are the same.
  std::int64_t all_reduce(std::size_t count, PieceEnds& ends, void* result, const Reduction& reduction);
  // The places of PieceEnds for an all_reduce of `bytes`: see PieceFlow.
  struct Places {
    std::size_t number;
    std::size_t bytes;
  };
  Places places(std::size_t bytes);
  // own: this rank's terms in order, partition.count elements of reduction.from each. recv takes this rank's
  // part, and may be that part's place in a term if the types are the same.
  std::int64_t reduce_scatter(const Partition& partition, std::span<const void* const> own, void* recv,
                              const Reduction& reduction);
  // Gathers every rank's part in data, where this rank's part already is. Owners of empty parts send nothing.
  std::int64_t all_gather(const Partition& partition, void* data, std::size_t element_bytes);
  // Sends the k-th `bytes` of send to rank k; recv takes the k-th from rank k and must not overlap send.
  std::int64_t all_to_all(const void* send, void* recv, std::size_t bytes);
  std::int64_t barrier();
  // Returns no time: ranks do not hear from all others.
  void broadcast(void* data, std::size_t bytes, int root);

 private:
  // The algorithm of an all_reduce of `bytes`. Collective if automatic: if the number of ranks is no power of
  // two, the first large all_reduce measures both algorithms, for about 0.1 s at 200 Mb/s, and all ranks
  // choose the same. The session keeps the result for exchanges of the same shape.
  AllReduceWay way_of(std::size_t bytes);
  // All collective. Which of two algorithms with the same bits is faster here: as all ranks know already, or
  // as measured now.
  FasterWay find_faster();
  std::optional<FasterWay> known_to_all();
  FasterWay probe();
  bool halving_is_faster(std::size_t bytes);
  // Seconds of an all_reduce of zeros.
  float time_of(AllReduceWay way, const Buffer& data, std::size_t bytes);
  std::int64_t run(AllReduceWay way, std::size_t count, PieceEnds& ends, void* result,
                   const Reduction& reduction);
  PieceFlow& pieces();
  HalvingFlow& halving();
  std::int64_t all_reduce_by_mpi(std::size_t count, PieceEnds& ends, void* result,
                                 const Reduction& reduction);
  std::int64_t all_reduce_small(void* data, std::size_t count, DType dtype, ReduceOp op);
  void send(const void* data, std::size_t bytes, int to);
  void receive(void* data, std::size_t bytes, int from);
  // Waits for all messages since the last wait(). Throws GaveUp.
  void wait();

  MPI_Comm communicator_;
  std::vector<PartialSum> terms_;
  Link link_;
  MpiSession& session_;
  WireShape shape_;
  const WaitPlace& place_;
  int rank_ = 0;
  int size_ = 1;
  Buffer staging_;  // terms of a small sum, a place for each rank
  std::vector<const void*> sources_;
  std::vector<MPI_Request> requests_;
  std::size_t waited_bytes_ = 0;  // of requests_
  std::uint64_t sent_bytes_ = 0;
  std::uint64_t probe_bytes_ = 0;  // sent to measure algorithms; not in sent_bytes()
  std::optional<FasterWay> faster_;
  std::atomic<std::size_t> staging_bytes_{0};
  bool halves_;  // an all_reduce may use halving
  std::optional<HalvingFlow> halving_;
  std::optional<PieceFlow> pieces_;
  BlockFlow blocks_;
};

}  // namespace lockstep
