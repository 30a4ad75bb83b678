// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/node_group.h"

#include <memory>
#include <thread>

#include "comm/mpi/session.h"
#include "core/error.h"

namespace lockstep {
namespace {

int size_of_group(MPI_Comm node) {
  int size = 0;
  MPI_CHECK(MPI_Comm_size(node, &size));
  return size;
}

// Spinning is for ranks that have a core each.
int spins_for(int ranks) {
  return static_cast<unsigned>(ranks) <= std::thread::hardware_concurrency() ? 2000 : 0;
}

}  // namespace

NodeGroup::NodeGroup(MPI_Comm node, const WaitPlace& place)
    : place_(place),
      size_(size_of_group(node)),
      spins_(spins_for(size_)),
      window_(std::make_shared<NodeWindow>(node, bytes_each(size_))),
      barrier_(reinterpret_cast<NodeBarrier*>(window_->segments()[0])),
      slots_(reinterpret_cast<Slot*>(window_->segments()[0] + sizeof(NodeBarrier))) {
  MPI_CHECK(MPI_Comm_rank(node, &rank_));
  if (rank_ == 0) std::construct_at(barrier_);
  std::construct_at(slots_ + rank_);
  MPI_CHECK(MPI_Barrier(node));
}

void NodeGroup::meet(const Call& call) {
  slots_[rank_].call = call;
  barrier();
  for (int other = 0; other < size_; ++other) {
    const Call& theirs = slots_[other].call;
    CHECK(call == theirs,
          "ranks of one node differ: local rank {} reduces {} elements at byte {} of buffer {}, local rank "
          "{} {} "
          "elements at byte {} of buffer {}",
          rank_, call.count, call.offset_bytes, call.window, other, theirs.count, theirs.offset_bytes,
          theirs.window);
  }
}

void NodeGroup::barrier() { barrier_->wait(static_cast<std::uint32_t>(size_), spins_, place_); }

}  // namespace lockstep
