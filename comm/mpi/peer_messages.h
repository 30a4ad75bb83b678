// SPDX-License-Identifier: Apache-2.0
//
// PeerMessages: messages to and from other nodes that are under way together, in pieces of at most
// kWirePieceBytes. Those of a pair of ranks arrive in the order in which they were sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <mpi.h>

#include "comm/job/job_state.h"
#include "comm/mpi/session.h"

namespace lockstep {

class PeerMessages {
 public:
  // place outlives this. Messages have this tag.
  PeerMessages(MPI_Comm communicator, int tag, const WaitPlace& place)
      : communicator_(communicator), tag_(tag), place_(place) {}

  // The data must not change until finish().
  void send(const void* data, std::size_t bytes, int to);
  void receive(void* data, std::size_t bytes, int from);
  // Lets MPI make progress, which it does only in its own calls. Call it during other work.
  void move_on();
  // Waits until all messages have completed. Throws GaveUp.
  void finish();

  std::uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  MPI_Comm communicator_;
  int tag_;
  const WaitPlace& place_;
  std::vector<MPI_Request> requests_;
  std::uint64_t sent_bytes_ = 0;
};

}  // namespace lockstep
