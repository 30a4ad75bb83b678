// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/node/group.h"

#include <memory>
#include <string>
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

std::string describe(const NodeGroup::Call& call) {
  const Collective collective{.kind = static_cast<CollectiveKind>(call.kind),
                              .dtype = static_cast<DType>(call.dtype),
                              .op = static_cast<ReduceOp>(call.op),
                              .root = call.root,
                              .count = call.count};
  if (call.window == 0 && call.offset_bytes == 0) return describe(collective);
  return fmt::format("{} at byte {} of buffer {}", describe(collective), call.offset_bytes, call.window);
}

// Ranks spin only if each has a core.
int spins_for(int ranks) {
  return static_cast<unsigned>(ranks) <= std::thread::hardware_concurrency() ? 2000 : 0;
}

}  // namespace

NodeGroup::NodeGroup(MPI_Comm node, std::size_t staging_bytes, const WaitPlace& place)
    : place_(place),
      size_(size_of_group(node)),
      spins_(spins_for(size_)),
      staging_bytes_(staging_bytes),
      window_(std::make_shared<NodeWindow>(node, bytes_each(staging_bytes))) {
  MPI_CHECK(MPI_Comm_rank(node, &rank_));
  for (std::byte* segment : window_->segments()) segments_.push_back(reinterpret_cast<Segment*>(segment));
  std::construct_at(segment(rank_));
  MPI_CHECK(MPI_Barrier(node));
}

void NodeGroup::meet(const Call& call, const Source& source) {
  const unsigned turn = ++meetings_ % 2;
  segment(rank_)->slots[turn] = {call, source};
  barrier();
  for (int other = 0; other < size_; ++other) {
    const Call& theirs = segment(other)->slots[turn].call;
    CHECK(call == theirs,
          "the ranks of one node call different collectives: local rank {} is in {}, local rank {} in {}",
          rank_, describe(call), other, describe(theirs));
  }
}

const NodeGroup::Source& NodeGroup::source(int rank) const {
  return segment(rank)->slots[meetings_ % 2].source;
}

void NodeGroup::barrier() { segment(0)->barrier.wait(static_cast<std::uint32_t>(size_), spins_, place_); }

}  // namespace lockstep
