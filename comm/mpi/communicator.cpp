// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/communicator.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "core/timeline.h"

namespace lockstep {
namespace {

// What ranks that share no memory bring to a sum: each its own data.
std::vector<PartialSum> every_rank(int size) {
  std::vector<int> alone(static_cast<std::size_t>(size));
  std::iota(alone.begin(), alone.end(), 0);
  return partial_sums(alone);
}

void free_communicator(MPI_Comm& communicator) {
  if (communicator != MPI_COMM_NULL) MPI_CHECK(MPI_Comm_free(&communicator));
}

}  // namespace

// What this rank reduces: `count` elements at byte `offset` of every local rank's segment.
struct MpiTransport::Part {
  const Allocation& allocation;
  std::size_t offset;
  std::size_t count;
  DType dtype;
  ReduceOp op;
};

MpiTransport::MpiTransport(std::shared_ptr<MpiSession> session) : session_(std::move(session)) {
  MPI_CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &world_comm_));
  world_.emplace(world_comm_, every_rank(session_->size), *session_, broken_);
  if (session_->largest_node > 1) connect_node();
  ++session_->communicators;
}

void MpiTransport::connect_node() {
  MPI_CHECK(MPI_Comm_split(world_comm_, session_->node, session_->rank, &node_comm_));
  node_.emplace(node_comm_, broken_);
  sources_.resize(static_cast<std::size_t>(node_->size()));
  destinations_.resize(sources_.size());
  parts_ = session_->smallest_node;
  if (session_->nodes > 1) connect_peers();
}

void MpiTransport::connect_peers() {
  const bool drives = session_->local_rank < parts_;
  MPI_CHECK(MPI_Comm_split(world_comm_, drives ? session_->local_rank : MPI_UNDEFINED, session_->node,
                           &peers_comm_));
  if (!drives) return;
  const std::vector<PartialSum> terms = partial_sums(session_->node_of);
  peers_.emplace(peers_comm_, terms, *session_, broken_);
  sums_.emplace(terms, session_->node, session_->nodes);
}

MpiTransport::~MpiTransport() {
  --session_->communicators;
  if (broken_ || !session_->usable()) return;
  if (!allocations_.empty()) {
    log::warning("{} buffers outlive the communicator that allocated them, and stay", allocations_.size());
    return;
  }
  try {
    if (node_) node_->free();
    free_communicator(peers_comm_);
    free_communicator(node_comm_);
    free_communicator(world_comm_);
  } catch (const std::exception& error) {
    log::warning("{}", error.what());
  }
}

void* MpiTransport::allocate(std::size_t bytes) {
  if (!node_) return nullptr;
  auto window = std::make_unique<NodeWindow>(node_comm_, std::max(bytes, kAlignment));
  void* data = window->own();
  allocations_.push_back({allocated_++, std::move(window)});
  return data;
}

void MpiTransport::free(void* data) {
  if (broken_ || !session_->usable()) return;
  const auto found =
      std::find_if(allocations_.begin(), allocations_.end(),
                   [&](const Allocation& allocation) { return allocation.window->own() == data; });
  CHECK(found != allocations_.end(), "memory of another communicator");
  found->window->free();
  allocations_.erase(found);
}

std::uint64_t MpiTransport::sent_bytes() const {
  return world_->sent_bytes() + (peers_ ? peers_->sent_bytes() : 0) + shared_bytes_;
}

std::size_t MpiTransport::memory_bytes() const {
  return world_->staging_bytes() + (peers_ ? peers_->staging_bytes() + sums_->memory_bytes() : 0);
}

// Of messages nobody can tell when all ranks were there, but that a barrier has ended.
std::int64_t MpiTransport::run(const Collective& c) {
  met_ns_ = 0;
  switch (c.kind) {
    case CollectiveKind::all_reduce:
      all_reduce(c.recv, c.count, c.dtype, c.op);
      break;
    case CollectiveKind::reduce_scatter:
      reduce_scatter(c.send, c.recv, c.count, c.dtype, c.op);
      break;
    case CollectiveKind::all_gather:
      all_gather(c.send, c.recv, c.count, c.dtype);
      break;
    case CollectiveKind::broadcast:
      world_->broadcast(c.recv, c.count * size_of(c.dtype), c.root);
      break;
    case CollectiveKind::barrier:
      world_->barrier();
      met_ns_ = now_ns();
  }
  return met_ns_;
}

void MpiTransport::all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) {
  const std::size_t bytes = count * size_of(dtype);
  for (const Allocation& allocation : allocations_) {
    if (!allocation.window->contains(data, bytes)) continue;
    const auto offset = static_cast<std::size_t>(static_cast<std::byte*>(data) - allocation.window->own());
    return all_reduce_shared(allocation, offset, count, dtype, op);
  }
  world_->all_reduce(data, count, dtype, op);
}

void MpiTransport::all_reduce_shared(const Allocation& allocation, std::size_t offset, std::size_t count,
                                     DType dtype, ReduceOp op) {
  node_->meet({.window = allocation.number,
               .offset_bytes = offset,
               .count = count,
               .dtype = static_cast<std::uint32_t>(dtype),
               .op = static_cast<std::uint32_t>(op)});
  if (!peers_) met_ns_ = now_ns();  // of other nodes nobody knows here
  const std::size_t element = size_of(dtype);
  const Partition partition = Partition::even(count, parts_, element);
  const std::size_t own = partition.size(node_->rank());
  const Part part{allocation, offset + partition.begin(node_->rank()) * element, own, dtype, op};
  if (peers_) {
    reduce_over_nodes(part);
  } else if (own > 0) {
    point_at(allocation, part.offset);
    reduce_along_tree(sources_, destinations_, own, {.from = dtype, .to = dtype, .op = op});
  }
  // The others read what is not this rank's part, and get the part that is.
  shared_bytes_ += (count - own + static_cast<std::size_t>(node_->size() - 1) * own) * element;
  node_->barrier();
}

void MpiTransport::reduce_over_nodes(const Part& part) {
  const std::size_t element = size_of(part.dtype);
  const std::size_t step = sums_->most_elements(part.dtype);
  for (std::size_t at = 0; at < part.count; at += step) {
    const std::size_t count = std::min(step, part.count - at);
    point_at(part.allocation, part.offset + at * element);
    const auto terms = sums_->add(sources_, count, part.dtype, part.op);

    auto* result = static_cast<std::byte*>(destinations_[static_cast<std::size_t>(node_->rank())]);
    const Partition partition = Partition::even(count, peers_->size(), element);
    peers_->reduce_scatter(partition, terms, result + partition.begin(peers_->rank()) * element,
                           {.from = sums_->type_of(part.dtype), .to = part.dtype, .op = part.op});
    peers_->all_gather(partition, result, element);
    for (void* destination : destinations_) {
      if (destination != result) std::memcpy(destination, result, count * element);
    }
  }
}

void MpiTransport::point_at(const Allocation& allocation, std::size_t offset) {
  const std::span<std::byte* const> segments = allocation.window->segments();
  for (std::size_t rank = 0; rank < segments.size(); ++rank) {
    sources_[rank] = segments[rank] + offset;
    destinations_[rank] = segments[rank] + offset;
  }
}

void MpiTransport::reduce_scatter(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op) {
  const Partition partition{.count = count * static_cast<std::size_t>(world_->size()), .part = count};
  world_->reduce_scatter(partition, {&send, 1}, recv, {.from = dtype, .to = dtype, .op = op});
}

void MpiTransport::all_gather(const void* send, void* recv, std::size_t count, DType dtype) {
  const std::size_t bytes = count * size_of(dtype);
  std::byte* own = static_cast<std::byte*>(recv) + static_cast<std::size_t>(world_->rank()) * bytes;
  if (own != send) std::memcpy(own, send, bytes);
  const Partition partition{.count = count * static_cast<std::size_t>(world_->size()), .part = count};
  world_->all_gather(partition, recv, size_of(dtype));
}

std::unique_ptr<Communicator> make_mpi_communicator(std::shared_ptr<MpiSession> session) {
  if (!session->multithreaded && session->communicators > 0) {
    throw ConfigError(
        "this MPI library allows one calling thread at a time (MPI_THREAD_SERIALIZED), so there can "
        "be one communicator at a time: use an MPI built with MPI_THREAD_MULTIPLE");
  }
  const int rank = session->rank;
  const int size = session->size;
  return std::make_unique<HostCommunicator>(rank, size, std::make_unique<MpiTransport>(std::move(session)));
}

}  // namespace lockstep
