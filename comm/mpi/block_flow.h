// SPDX-License-Identifier: Apache-2.0
//
// BlockFlow: an exchange in which every rank has a block of its own for every other. Nothing is added and
// nothing staged: pieces leave from where they lie and arrive where they belong. They go out in turns to all
// others, rank r to r + 1 while it hears from r - 1, then to r + 2, and so on, so that no rank is sent to by
// all at once; several are under way in both directions. On a wire they are of kWirePieceBytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <mpi.h>

#include "comm/job_state.h"
#include "comm/mpi/session.h"

namespace lockstep {

class BlockFlow {
 public:
  // place outlives this. Messages have this tag.
  BlockFlow(MPI_Comm communicator, Link link, int tag, const WaitPlace& place);

  // send and recv, which are apart, hold a block of so many bytes for each rank, this one included. Blocks;
  // throws GaveUp. Returns when all ranks were known to be there, by now_ns(), or 0 where there was nothing
  // to send.
  std::int64_t run(const void* send, void* recv, std::size_t block_bytes);

  std::uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  // Turn `turn` of all: a piece to one rank, and one from another. On all ranks alike.
  void start(std::size_t turn);
  // Returns how many messages were through.
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
  std::vector<MPI_Request> requests_;  // what arrives and what leaves, of each turn that is under way
  std::vector<int> completed_;
  // Of the work under way:
  const std::byte* send_ = nullptr;
  std::byte* recv_ = nullptr;
  std::size_t block_bytes_ = 0;
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace lockstep
