// SPDX-License-Identifier: Apache-2.0
//
// NodeGroup: the ranks of one node meeting in shared memory: a barrier, and a check that all of them are in
// the same collective on the same place of the same buffer (a mismatch would otherwise be silently wrong
// sums).
#pragma once

#include <atomic>
#include <cstdint>

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

  // Collective. broken outlives this; once it is set, waiting throws.
  NodeGroup(MPI_Comm node, const std::atomic<bool>& broken);

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Shows this rank's call and waits for everybody's. Throws on every rank when they differ.
  void meet(const Call& call);
  void barrier();
  // Collective.
  void free() { window_.free(); }

 private:
  struct alignas(64) Slot {
    Call call;
  };

  const std::atomic<bool>& broken_;
  int rank_ = 0;
  int size_ = 1;
  int spins_;
  NodeWindow window_;
  NodeBarrier* barrier_;  // both in the segment of local rank 0
  Slot* slots_;
};

}  // namespace lockstep
