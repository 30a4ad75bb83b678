// SPDX-License-Identifier: Apache-2.0
//
// BlockFlow: an all_to_all: every rank has a separate block for every other. Nothing is added or staged:
// pieces are sent from the source and received at the destination. Rank r sends to r + 1 while it receives
// from r - 1, then to r + 2, and so on, so that no rank receives from all at once; several pieces are under
// way in both directions. On a wire pieces have kWirePieceBytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <mpi.h>

#include "comm/job/job_state.h"
#include "comm/mpi/session.h"

namespace lockstep {

class BlockFlow {
 public:
  // place outlives this. Messages have this tag.
  BlockFlow(MPI_Comm communicator, Link link, int tag, const WaitPlace& place);

  // send and recv, which must not overlap, hold block_bytes for each rank, this one included. Blocks; throws
  // GaveUp. Returns the time (now_ns()) when all ranks were known to have arrived, or 0 if there was nothing
  // to send.
  std::int64_t run(const void* send, void* recv, std::size_t block_bytes);

  std::uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  // Starts turn `turn`: a piece to one rank, and one from another.
  void start(std::size_t turn);
  // Returns the number of messages that completed.
  int take_arrived();
  MPI_Request* requests_of(std::size_t turn) { return &requests_[turn % under_way_ * 2]; }

  MPI_Comm communicator_;
  const WaitPlace& place_;
  Link link_;
  int tag_;
  int rank_ = 0;
  int size_ = 1;
  std::size_t piece_bytes_;
  std::size_t under_way_;              // turns
  std::vector<MPI_Request> requests_;  // a receive and a send for each turn under way
  std::vector<int> completed_;
  // The current run():
  const std::byte* send_ = nullptr;
  std::byte* recv_ = nullptr;
  std::size_t block_bytes_ = 0;
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace lockstep
