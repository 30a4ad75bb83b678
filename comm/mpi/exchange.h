// SPDX-License-Identifier: Apache-2.0
//
// MpiExchange: collectives over point-to-point messages. Each rank reduces its own part of the data along the
// tree (comm/sum_tree.h) and sends it to all: every term of a sum goes once to the owner of each part, every
// result once to everybody, and its bits do not depend on how the data was split. A rank brings one term, or
// several where it speaks for a node. On a wire, where every rank brings one, an all_reduce may instead go by
// recursive halving and doubling (comm/halving_schedule.h), with the same bits: messages to log2 n others,
// and memory that does not grow with their number. Messages and staging memory are bounded; what most sums
// take is allocated at once, what others do when it is first needed. Used by the communicator's worker thread
// only.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <mpi.h>

#include "comm/mpi/block_flow.h"
#include "comm/mpi/halving_flow.h"
#include "comm/mpi/piece_flow.h"
#include "comm/mpi/session.h"
#include "comm/partition.h"
#include "comm/reduce.h"
#include "comm/sum_tree.h"
#include "core/buffer.h"

namespace lockstep {

class MpiExchange {
 public:
  // Every sum is of these terms; the rank of the communicator that brings one is its `node`. communicator,
  // session, which says by which way an all_reduce goes on a wire, and place outlive this. shape: of a wire.
  MpiExchange(MPI_Comm communicator, std::span<const PartialSum> terms, Link link, MpiSession& session,
              const WireShape& shape, const WaitPlace& place);

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::uint64_t sent_bytes() const;
  std::size_t staging_bytes() const { return staging_bytes_; }  // any thread
  // Whether an all_reduce may go by halving.
  bool halves() const { return halves_; }
  // How an all_reduce of so many bytes goes. Collective where it is automatic: the first large one of ranks
  // that are no power of two measures both ways, for about 0.1 s at 200 Mb/s, and all choose the same. The
  // session keeps what was found for others of the same shape.
  AllReduceWay way_of(std::size_t bytes);

  // These return when all ranks were known to be there, by now_ns(), as early as this rank can tell: what
  // arrived from one of them was sent in this collective. 0: it cannot.

  // Where every rank brings one term: data.
  std::int64_t all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op);
  // ends brings this rank's terms, of reduction.from, and hears of what lies in result, of reduction.to; a
  // term may lie in the result's place when the types are the same.
  std::int64_t all_reduce(std::size_t count, PieceEnds& ends, void* result, const Reduction& reduction);
  // Of the PieceEnds of an all_reduce of so many bytes: see PieceFlow.
  struct Places {
    std::size_t number;
    std::size_t bytes;
  };
  Places places(std::size_t bytes);
  // own points to this rank's terms in their order, partition.count elements of reduction.from each;
  // recv takes this rank's part, and may be that part's place in a term when the types are the same.
  std::int64_t reduce_scatter(const Partition& partition, std::span<const void* const> own, void* recv,
                              const Reduction& reduction);
  // Every rank's part, its own already in place. Where parts are empty, nothing is heard of their owners.
  std::int64_t all_gather(const Partition& partition, void* data, std::size_t element_bytes);
  // Of each rank's memory the k-th `bytes` go to rank k; recv, apart from send, takes the k-th from rank k.
  std::int64_t all_to_all(const void* send, void* recv, std::size_t bytes);
  std::int64_t barrier();
  // Nobody hears of all the others.
  void broadcast(void* data, std::size_t bytes, int root);

 private:
  // Collective, all of them. Of two ways that give the same bits, which is the faster here: as all ranks know
  // it, or as it is measured now.
  FasterWay find_faster();
  std::optional<FasterWay> known_to_all();
  FasterWay probe();
  bool halving_is_faster(std::size_t bytes);
  // Of zeros. Seconds.
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
  // Until all messages since the last wait() are through. Throws GaveUp.
  void wait();

  MPI_Comm communicator_;
  std::vector<PartialSum> terms_;
  Link link_;
  MpiSession& session_;
  WireShape shape_;
  const WaitPlace& place_;
  int rank_ = 0;
  int size_ = 1;
  Buffer staging_;  // of what ranks bring to a small sum, a place for each
  std::vector<const void*> sources_;
  std::vector<MPI_Request> requests_;
  std::size_t waited_bytes_ = 0;  // of these requests
  std::uint64_t sent_bytes_ = 0;
  std::uint64_t probe_bytes_ = 0;  // of all sent, to choose a way
  std::optional<FasterWay> faster_;
  std::atomic<std::size_t> staging_bytes_{0};
  bool halves_;
  std::optional<HalvingFlow> halving_;
  std::optional<PieceFlow> pieces_;
  BlockFlow blocks_;
};

}  // namespace lockstep
