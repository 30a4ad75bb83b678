// SPDX-License-Identifier: Apache-2.0
//
// NodeGroup: the ranks of one node meeting in shared memory: a barrier, and a check that all of them are in
// the same collective on the same place of the same buffer (a mismatch would otherwise be silently wrong
// sums).
#pragma once

#include <cstdint>
#include <memory>

#include <mpi.h>

#include "comm/mpi/node_barrier.h"
#include "comm/mpi/node_window.h"

namespace lockstep {

class NodeGroup {
 public:
  struct Call {
    std::uint64_t window = 0;  // its number, in order of allocation
    std::uint64_t offset_bytes = 0;
    std::uint64_t count = 0;
    std::uint32_t dtype = 0;
    std::uint32_t op = 0;
    bool operator==(const Call&) const = default;
  };

  // Collective. place outlives this.
  NodeGroup(MPI_Comm node, const WaitPlace& place);
  // What it needs of the node's shared memory, for each rank.
  static std::size_t bytes_each(int ranks) {
    return sizeof(NodeBarrier) + static_cast<std::size_t>(ranks) * sizeof(Slot);
  }

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Shows this rank's call and waits for everybody's. Throws on every rank when they differ. Waiting throws
  // GaveUp.
  void meet(const Call& call);
  void barrier();
  // For whoever frees it when this has ended.
  std::shared_ptr<NodeWindow> window() const { return window_; }

 private:
  struct alignas(64) Slot {
    Call call;
  };

  const WaitPlace& place_;
  int rank_ = 0;
  int size_ = 1;
  int spins_;
  std::shared_ptr<NodeWindow> window_;
  NodeBarrier* barrier_;  // both in the segment of local rank 0
  Slot* slots_;
};

}  // namespace lockstep
