// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/peer_messages.h"

#include <algorithm>

#include "comm/mpi/piece_flow.h"

namespace lockstep {

void PeerMessages::send(const void* data, std::size_t bytes, int to) {
  for (std::size_t at = 0; at < bytes; at += kWirePieceBytes) {
    const auto piece = static_cast<int>(std::min(kWirePieceBytes, bytes - at));
    MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
    MPI_CHECK(MPI_Isend(static_cast<const std::byte*>(data) + at, piece, MPI_BYTE, to, tag_, communicator_,
                        &request));
  }
  sent_bytes_ += bytes;
}

void PeerMessages::receive(void* data, std::size_t bytes, int from) {
  for (std::size_t at = 0; at < bytes; at += kWirePieceBytes) {
    const auto piece = static_cast<int>(std::min(kWirePieceBytes, bytes - at));
    MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
    MPI_CHECK(
        MPI_Irecv(static_cast<std::byte*>(data) + at, piece, MPI_BYTE, from, tag_, communicator_, &request));
  }
}

void PeerMessages::move_on() {
  int done = 0;
  MPI_CHECK(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE));
}

void PeerMessages::finish() {
  wait_for(requests_, place_, "messages from other nodes", Link::wire);
  requests_.clear();
}

}  // namespace lockstep
