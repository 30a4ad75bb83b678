// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/node/group.h"

#include <memory>
#include <string>
#include <thread>

#include "comm/mpi/session.h"
#include "core/error.h"
#include "core/timeline.h"

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
  if (call.window == NodeGroup::Source::kNone) return describe(collective);
  return fmt::format("{} at byte {} of shared buffer {}", describe(collective), call.offset_bytes,
                     call.window);
}

// Ranks spin only if each has a core.
int spins_for(int ranks) {
  return static_cast<unsigned>(ranks) <= std::thread::hardware_concurrency() ? 2000 : 0;
}

}  // namespace

NodeGroup::NodeGroup(MPI_Comm node, const std::vector<std::shared_ptr<NodeWindow>>& windows,
                     std::size_t staging_bytes, const WaitPlace& place)
    : windows_(windows),
      place_(place),
      size_(size_of_group(node)),
      spins_(spins_for(size_)),
      staging_bytes_(staging_bytes),
      window_(std::make_shared<NodeWindow>(node, bytes_each(staging_bytes))) {
  MPI_CHECK(MPI_Comm_rank(node, &rank_));
  for (std::byte* segment : window_->segments()) segments_.push_back(reinterpret_cast<Segment*>(segment));
  std::construct_at(segment(rank_));
  MPI_CHECK(MPI_Barrier(node));
}

NodeGroup::Source NodeGroup::find(const void* data, std::size_t bytes) const {
  for (const std::shared_ptr<NodeWindow>& window : windows_) {
    if (!window->contains(data, bytes)) continue;
    return {.window = window->id(),
            .offset_bytes = static_cast<std::uint64_t>(static_cast<const std::byte*>(data) - window->own())};
  }
  return {};
}

std::int64_t NodeGroup::meet(const Collective& collective, const Source& source,
                             std::vector<const std::byte*>& seen) {
  meet({.count = collective.count,
        .dtype = static_cast<std::uint32_t>(collective.dtype),
        .op = static_cast<std::uint32_t>(collective.op),
        .kind = static_cast<std::uint32_t>(collective.kind),
        .root = collective.root},
       source);
  const std::int64_t met_ns = now_ns();
  for (int rank = 0; rank < size_; ++rank) {
    const Source& theirs = segment(rank)->slots[meetings_ % 2].source;
    const std::byte*& data = seen[static_cast<std::size_t>(rank)];
    data = nullptr;
    for (const std::shared_ptr<NodeWindow>& window : windows_) {
      if (window->id() == theirs.window)
        data = window->segments()[static_cast<std::size_t>(rank)] + theirs.offset_bytes;
    }
  }
  return met_ns;
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

void NodeGroup::barrier() { segment(0)->barrier.wait(static_cast<std::uint32_t>(size_), spins_, place_); }

}  // namespace lockstep
