// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/block_flow.h"

#include <algorithm>
#include <cstring>

#include "comm/mpi/piece_flow.h"
#include "core/timeline.h"

namespace lockstep {

BlockFlow::BlockFlow(MPI_Comm communicator, Link link, int tag, const WaitPlace& place)
    : communicator_(communicator),
      place_(place),
      link_(link),
      tag_(tag),
      piece_bytes_(link == Link::wire ? kWirePieceBytes : std::size_t{1} << 20),
      under_way_(link == Link::wire ? 16 : 4) {
  MPI_CHECK(MPI_Comm_rank(communicator_, &rank_));
  MPI_CHECK(MPI_Comm_size(communicator_, &size_));
  requests_.assign(2 * under_way_, MPI_REQUEST_NULL);
  completed_.resize(requests_.size());
}

// All pieces have one tag: those of a pair of ranks are received in the order in which they are sent.
void BlockFlow::start(std::size_t turn) {
  const auto others = static_cast<std::size_t>(size_ - 1);
  const int distance = 1 + static_cast<int>(turn % others);
  const int to = (rank_ + distance) % size_;
  const int from = (rank_ - distance + size_) % size_;
  const std::size_t at = turn / others * piece_bytes_;
  const std::size_t bytes = std::min(piece_bytes_, block_bytes_ - at);
  MPI_Request* const requests = requests_of(turn);
  std::byte* const taken = recv_ + static_cast<std::size_t>(from) * block_bytes_ + at;
  const std::byte* const given = send_ + static_cast<std::size_t>(to) * block_bytes_ + at;
  MPI_CHECK(MPI_Irecv(taken, static_cast<int>(bytes), MPI_BYTE, from, tag_, communicator_, &requests[0]));
  MPI_CHECK(MPI_Isend(given, static_cast<int>(bytes), MPI_BYTE, to, tag_, communicator_, &requests[1]));
  sent_bytes_ += bytes;
}

int BlockFlow::take_arrived() {
  int count = 0;
  MPI_CHECK(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, completed_.data(),
                         MPI_STATUSES_IGNORE));
  return std::max(count, 0);  // MPI_UNDEFINED if nothing is under way
}

std::int64_t BlockFlow::run(const void* send, void* recv, std::size_t block_bytes) {
  send_ = static_cast<const std::byte*>(send);
  recv_ = static_cast<std::byte*>(recv);
  block_bytes_ = block_bytes;
  const auto others = static_cast<std::size_t>(size_ - 1);
  const std::size_t turns = (block_bytes + piece_bytes_ - 1) / piece_bytes_ * others;
  std::int64_t met_ns = size_ == 1 ? now_ns() : 0;
  std::size_t started = 0;
  const auto under_way = [&](std::size_t turn) {
    return requests_of(turn)[0] != MPI_REQUEST_NULL || requests_of(turn)[1] != MPI_REQUEST_NULL;
  };
  FlowWait wait(place_, link_, block_bytes * others);
  for (std::size_t done = 0; done < turns;) {
    const bool starts = started < std::min(turns, done + under_way_);
    if (starts) start(started++);
    const int arrivals = take_arrived();
    while (done < started && !under_way(done)) ++done;
    if (met_ns == 0 && done >= others) met_ns = now_ns();  // the first piece of each rank has arrived
    wait.after_look(arrivals, starts);
  }
  const std::size_t own = static_cast<std::size_t>(rank_) * block_bytes;
  std::memcpy(recv_ + own, send_ + own, block_bytes);
  return met_ns;
}

}  // namespace lockstep
