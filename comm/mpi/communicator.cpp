// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/communicator.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "comm/world.h"
#include "core/error.h"
#include "core/log.h"
#include "core/timeline.h"

namespace lockstep {
namespace {

// The terms of ranks that share no memory: each rank's own data.
std::vector<PartialSum> every_rank(int size) {
  std::vector<int> alone(static_cast<std::size_t>(size));
  std::iota(alone.begin(), alone.end(), 0);
  return partial_sums(alone);
}

std::size_t node_staging_bytes(const Placement& placement) {
  if (placement.nodes == 1) return NodeCollectives::staging_bytes(placement.largest_node);
  return HierarchicalCollectives::has_room(placement) ? HierarchicalCollectives::staging_bytes() : 0;
}

MPI_Comm duplicate_of_world() {
  MPI_Comm communicator = MPI_COMM_NULL;
  MPI_CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &communicator));
  return communicator;
}

}  // namespace

// The part that this rank reduces: `count` elements at byte `offset` of every local rank's segment.
struct MpiTransport::Part {
  const NodeWindow& window;
  std::size_t offset;
  std::size_t count;
  DType dtype;
  ReduceOp op;
};

MpiTransport::MpiTransport(std::shared_ptr<MpiSession> session, Placement placement)
    : MpiTransport(std::move(session), std::move(placement), duplicate_of_world()) {}

MpiTransport::MpiTransport(std::shared_ptr<MpiSession> session, Placement placement, MPI_Comm communicator)
    : HostTransport(placement.rank, placement.size, session->job),
      session_(std::move(session)),
      placement_(std::move(placement)),
      world_comm_(communicator) {
  {
    const std::lock_guard lock(session_->mutex);
    number_ = ++session_->transports;
  }
  world_.emplace(world_comm_, every_rank(size()), placement_.nodes > 1 ? Link::wire : Link::memory, *session_,
                 WireShape{.ranks = size(), .nodes = placement_.nodes}, place());
  if (placement_.largest_node > 1 && windows_fit(NodeGroup::bytes_each(node_staging_bytes(placement_))))
    connect_node();
}

void MpiTransport::connect_node() {
  node_comm_ = world_comm_;
  if (placement_.nodes > 1) MPI_CHECK(MPI_Comm_split(world_comm_, placement_.node, rank(), &node_comm_));
  node_.emplace(node_comm_, allocations_, node_staging_bytes(placement_), place());
  if (placement_.nodes == 1) in_node_.emplace(*node_);
  sources_.resize(static_cast<std::size_t>(node_->size()));
  destinations_.resize(sources_.size());
  parts_ = placement_.smallest_node;
  if (placement_.nodes > 1) connect_peers();
}

void MpiTransport::connect_peers() {
  const bool drives = placement_.local_rank < parts_;
  MPI_CHECK(MPI_Comm_split(world_comm_, drives ? placement_.local_rank : MPI_UNDEFINED, placement_.node,
                           &peers_comm_));
  if (HierarchicalCollectives::has_room(placement_))
    over_nodes_.emplace(*node_, peers_comm_, placement_, place());
  if (!drives) return;
  const std::vector<PartialSum> terms = partial_sums(placement_.node_of);
  const WireShape shape{.ranks = placement_.nodes, .nodes = placement_.nodes, .parts = parts_};
  peers_.emplace(peers_comm_, terms, Link::wire, *session_, shape, place());
  sums_.emplace(terms, placement_.node);
}

MpiTransport::~MpiTransport() {
  const std::lock_guard lock(session_->mutex);
  if (node_) session_->windows.push_back(node_->window());
  for (auto& window : allocations_) session_->windows.push_back(std::move(window));
  if (node_comm_ == world_comm_) node_comm_ = MPI_COMM_NULL;  // is freed once
  for (MPI_Comm communicator : {peers_comm_, node_comm_, world_comm_}) {
    if (communicator != MPI_COMM_NULL) session_->communicators.push_back({number_, communicator});
  }
}

// All ranks decide alike: either all take a sum in shared memory or none does.
bool MpiTransport::windows_fit(std::size_t bytes) {
  const std::uint64_t free = free_shared_memory();
  const bool lacks = !fits_shared_memory(free, placement_.local_size, bytes);
  std::int32_t lacking = lacks ? 1 : 0;
  world_->all_reduce(&lacking, 1, DType::i32, ReduceOp::max);
  if (lacking == 0) return true;
  const std::lock_guard lock(session_->mutex);
  if (!std::exchange(session_->told_of_plain_memory, true)) {
    log::shared_warning(
        "/dev/shm has no room for {} MiB per rank of a node, so ranks copy data or send messages instead, "
        "which is slower; make it larger (containers often have 64 MiB: set --shm-size)",
        (bytes >> 20) + 1);
  }
  return false;
}

std::shared_ptr<void> MpiTransport::allocate(std::size_t bytes) {
  if (!node_) return nullptr;
  free_unheld(allocations_, place());
  // It returns after all ranks have arrived, so MPI's own calls, which have no time limit, wait for none.
  if (!windows_fit(bytes)) return nullptr;
  auto window = std::make_shared<NodeWindow>(node_comm_, std::max(bytes, kAlignment));
  window->set_id(allocated_++);
  allocations_.push_back(window);
  return {window, window->own()};
}

// All ranks allocate in one order, so either all find the window or none does.
std::vector<std::byte*> MpiTransport::shared_places(void* own) {
  if (size() == 1) return {static_cast<std::byte*>(own)};
  if (placement_.nodes > 1) return {};
  for (const std::shared_ptr<NodeWindow>& window : allocations_) {
    if (window->own() == own) return {window->segments().begin(), window->segments().end()};
  }
  return {};
}

std::unique_ptr<HostTransport> MpiTransport::split(int colour, int key) {
  meet_all(world_comm_, place(), "the other ranks, to create groups");
  MPI_Comm group = MPI_COMM_NULL;
  MPI_CHECK(MPI_Comm_split(world_comm_, colour < 0 ? MPI_UNDEFINED : colour, key, &group));
  if (group == MPI_COMM_NULL) return nullptr;
  int rank = 0;
  int size = 1;
  MPI_CHECK(MPI_Comm_rank(group, &rank));
  MPI_CHECK(MPI_Comm_size(group, &size));
  std::vector<int> nodes(static_cast<std::size_t>(size));
  MPI_CHECK(MPI_Allgather(&placement_.node, 1, MPI_INT, nodes.data(), 1, MPI_INT, group));
  return std::unique_ptr<HostTransport>(new MpiTransport(session_, place_ranks(rank, nodes), group));
}

std::uint64_t MpiTransport::sent_bytes() const {
  return world_->sent_bytes() + (peers_ ? peers_->sent_bytes() : 0) + shared_bytes_ +
         (in_node_ ? in_node_->sent_bytes() : 0) + (over_nodes_ ? over_nodes_->sent_bytes() : 0);
}

std::uint64_t MpiTransport::wire_bytes() const {
  return (peers_ ? peers_->sent_bytes() : 0) + (over_nodes_ ? over_nodes_->wire_bytes() : 0);
}

std::size_t MpiTransport::memory_bytes() const {
  return world_->staging_bytes() + (peers_ ? peers_->staging_bytes() + sums_->memory_bytes() : 0) +
         (node_ ? node_->staging_bytes() : 0) + (over_nodes_ ? over_nodes_->memory_bytes() : 0);
}

void MpiTransport::all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) {
  const std::size_t bytes = count * size_of(dtype);
  if (in_node_ && bytes <= NodeCollectives::kSmallBytes)
    return met(in_node_->all_reduce(data, count, dtype, op));
  for (const std::shared_ptr<NodeWindow>& window : allocations_) {
    if (!window->contains(data, bytes)) continue;
    const auto offset = static_cast<std::size_t>(static_cast<std::byte*>(data) - window->own());
    return all_reduce_shared(*window, offset, count, dtype, op);
  }
  if (in_node_) return met(in_node_->all_reduce(data, count, dtype, op));
  met(world_->all_reduce(data, count, dtype, op));
}

void MpiTransport::all_reduce_shared(const NodeWindow& window, std::size_t offset, std::size_t count,
                                     DType dtype, ReduceOp op) {
  node_->meet({.window = window.id(),
               .offset_bytes = offset,
               .count = count,
               .dtype = static_cast<std::uint32_t>(dtype),
               .op = static_cast<std::uint32_t>(op)});
  if (placement_.nodes == 1) met(now_ns());  // other nodes may not have arrived yet
  const std::size_t element = size_of(dtype);
  const Partition partition = Partition::even(count, parts_, element);
  const std::size_t own = partition.size(node_->rank());
  const Part part{window, offset + partition.begin(node_->rank()) * element, own, dtype, op};
  if (peers_) {
    reduce_over_nodes(part);
  } else if (own > 0) {
    point_at(window, part.offset);
    reduce_along_tree(sources_, destinations_, own, {.from = dtype, .to = dtype, .op = op});
  }
  // The others read this rank's data outside its part, and get the result of its part.
  shared_bytes_ += (count - own + static_cast<std::size_t>(node_->size() - 1) * own) * element;
  node_->barrier();
  met(now_ns());  // the ranks that drive parts have heard from all nodes
}

void MpiTransport::reduce_over_nodes(const Part& part) {
  // Supplies all local ranks' data by the piece, and copies results to all of them.
  class Ends final : public PieceEnds {
   public:
    Ends(MpiTransport& transport, const Part& part) : transport_(transport), part_(part) {}
    std::span<const void* const> bring(std::size_t begin, std::size_t count, std::size_t place) override {
      point_at(begin);
      return transport_.sums_->add(transport_.destinations_, count, part_.dtype, part_.op, place);
    }
    void deliver(std::size_t begin, std::size_t count) override {
      point_at(begin);
      const auto own = static_cast<std::size_t>(transport_.node_->rank());
      const void* result = transport_.destinations_[own];
      for (void* destination : transport_.destinations_) {
        if (destination != result) std::memcpy(destination, result, count * size_of(part_.dtype));
      }
    }

   private:
    void point_at(std::size_t begin) {
      transport_.point_at(part_.window, part_.offset + begin * size_of(part_.dtype));
    }
    MpiTransport& transport_;
    const Part& part_;
  } ends(*this, part);
  const auto [places, place_bytes] = peers_->places(part.count * size_of(part.dtype));
  sums_->prepare(part.dtype, places, place_bytes);
  // Each of these ranks has met its own node.
  met(peers_->all_reduce(part.count, ends, part.window.own() + part.offset,
                         {.from = sums_->type_of(part.dtype), .to = part.dtype, .op = part.op}));
}

void MpiTransport::point_at(const NodeWindow& window, std::size_t offset) {
  const std::span<std::byte* const> segments = window.segments();
  for (std::size_t rank = 0; rank < segments.size(); ++rank) {
    sources_[rank] = segments[rank] + offset;
    destinations_[rank] = segments[rank] + offset;
  }
}

void MpiTransport::reduce_scatter(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op) {
  if (in_node_) return met(in_node_->reduce_scatter(send, recv, count, dtype, op));
  if (over_nodes_) return met(over_nodes_->reduce_scatter(send, recv, count, dtype, op));
  const Partition partition{.count = count * static_cast<std::size_t>(world_->size()), .part = count};
  met(world_->reduce_scatter(partition, {&send, 1}, recv, {.from = dtype, .to = dtype, .op = op}));
}

void MpiTransport::all_gather(const void* send, void* recv, std::size_t count, DType dtype) {
  if (in_node_) return met(in_node_->all_gather(send, recv, count, dtype));
  if (over_nodes_) return met(over_nodes_->all_gather(send, recv, count, dtype));
  const std::size_t bytes = count * size_of(dtype);
  std::byte* own = static_cast<std::byte*>(recv) + static_cast<std::size_t>(world_->rank()) * bytes;
  if (own != send) std::memcpy(own, send, bytes);
  const Partition partition{.count = count * static_cast<std::size_t>(world_->size()), .part = count};
  met(world_->all_gather(partition, recv, size_of(dtype)));
}

void MpiTransport::all_to_all(const void* send, void* recv, std::size_t count, DType dtype) {
  if (in_node_) return met(in_node_->all_to_all(send, recv, count, dtype));
  met(world_->all_to_all(send, recv, count * size_of(dtype)));
}

void MpiTransport::broadcast(void* data, std::size_t count, DType dtype, int root) {
  if (in_node_) return met(in_node_->broadcast(data, count, dtype, root));
  if (over_nodes_) return over_nodes_->broadcast(data, count, dtype, root);
  world_->broadcast(data, count * size_of(dtype), root);
}

void MpiTransport::barrier() { met(in_node_ ? in_node_->barrier() : world_->barrier()); }

std::unique_ptr<Communicator> make_mpi_communicator(std::shared_ptr<MpiSession> session,
                                                    Placement placement) {
  free_left(*session);
  return std::make_unique<HostCommunicator>(
      std::make_unique<MpiTransport>(std::move(session), std::move(placement)));
}

std::unique_ptr<Communicator> make_mpi_communicator(std::shared_ptr<MpiSession> session) {
  Placement placement = session->placement;
  return make_mpi_communicator(std::move(session), std::move(placement));
}

}  // namespace lockstep
