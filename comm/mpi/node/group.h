// SPDX-License-Identifier: Apache-2.0
//
// NodeGroup: the ranks of one node in shared memory: a barrier, a check that all of them are in the same
// collective (a mismatch would silently give wrong sums), and a staging area for each rank's private data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <mpi.h>

#include "comm/collective.h"
#include "comm/mpi/node/barrier.h"
#include "comm/mpi/node/window.h"

namespace lockstep {

class NodeGroup {
 public:
  // Where other ranks can read a rank's data: in one of the windows, or nowhere (kNone).
  struct Source {
    static constexpr std::uint64_t kNone = ~std::uint64_t{0};
    std::uint64_t window = kNone;
    std::uint64_t offset_bytes = 0;
  };
  // The properties that must be the same on all ranks.
  struct Call {
    std::uint64_t window = Source::kNone;  // id() of the window with all ranks' data; kNone: other memory
    std::uint64_t offset_bytes = 0;
    std::uint64_t count = 0;
    std::uint32_t dtype = 0;
    std::uint32_t op = 0;
    std::uint32_t kind = 0;  // CollectiveKind
    std::int32_t root = 0;
    bool operator==(const Call&) const = default;
  };

  // Collective. windows and place outlive this. windows: those that may hold data, the same on all ranks.
  // staging_bytes: of each rank's area, a multiple of kAlignment.
  NodeGroup(MPI_Comm node, const std::vector<std::shared_ptr<NodeWindow>>& windows, std::size_t staging_bytes,
            const WaitPlace& place);
  // Bytes of the node's shared memory for each rank.
  static std::size_t bytes_each(std::size_t staging_bytes) { return sizeof(Segment) + staging_bytes; }

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Where other ranks can read this data; kNone if no window holds it.
  Source find(const void* data, std::size_t bytes) const;
  // Shows this rank's call, and waits for those of all ranks. Throws Error on every rank if the calls differ.
  // Waiting throws GaveUp.
  void meet(const Call& call) { meet(call, Source()); }
  // Like meet(call), for a collective whose data is at `source` on this rank. Sets seen, one for each rank:
  // the rank's data in a window, as an address in this process; null if it is in none. Returns the time
  // (now_ns()) when all ranks had arrived.
  std::int64_t meet(const Collective& collective, const Source& source, std::vector<const std::byte*>& seen);
  void barrier();
  // A rank's staging area. Others may read after a barrier or meeting what the rank wrote before it.
  std::byte* staging(int rank) const { return reinterpret_cast<std::byte*>(segment(rank) + 1); }
  std::size_t staging_bytes() const { return staging_bytes_; }
  // The memory, to be freed by its holder after this has ended.
  std::shared_ptr<NodeWindow> window() const { return window_; }

 private:
  struct alignas(64) Slot {
    Call call;
    Source source;
  };
  struct Segment {
    NodeBarrier barrier;  // all ranks use that of local rank 0
    // Meetings alternate between the slots: a rank in the next meeting has left the last one, whose slots
    // stay unchanged.
    Slot slots[2];
  };

  void meet(const Call& call, const Source& source);
  Segment* segment(int rank) const { return segments_[static_cast<std::size_t>(rank)]; }

  const std::vector<std::shared_ptr<NodeWindow>>& windows_;
  const WaitPlace& place_;
  int rank_ = 0;
  int size_ = 1;
  int spins_;
  std::size_t staging_bytes_;
  std::shared_ptr<NodeWindow> window_;
  std::vector<Segment*> segments_;
  unsigned meetings_ = 0;
};

}  // namespace lockstep
