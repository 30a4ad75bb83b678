// SPDX-License-Identifier: Apache-2.0
//
// MpiTransport: the collectives of CPU ranks under mpirun. An all_reduce inside memory from allocate()
// happens in place in memory the ranks of a node share: local rank l sums part l of everybody's data as far
// as one tree over all ranks allows (comm/sum_tree.h), exchanges these partial sums with local rank l of the
// other nodes, and writes the total into everybody's data. There are as many parts as ranks on the smallest
// node. All else goes through shared memory, too, where all ranks are on one node (NodeCollectives). On
// several nodes what is scattered, gathered or broadcast does in each node (HierarchicalCollectives); the
// rest, and where no node has two ranks or /dev/shm no room, goes by messages. All ways add along the same
// tree and give the same bits.
//
// The destructor waits for nobody: what only all ranks can free it leaves to the session.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/host_communicator.h"
#include "comm/mpi/exchange.h"
#include "comm/mpi/hierarchical_collectives.h"
#include "comm/mpi/node_collectives.h"
#include "comm/mpi/node_group.h"
#include "comm/mpi/node_sums.h"
#include "comm/mpi/session.h"

namespace lockstep {

class MpiTransport final : public HostTransport {
 public:
  // Collective over all ranks. placement: of them.
  MpiTransport(std::shared_ptr<MpiSession> session, Placement placement);
  ~MpiTransport() override;

  std::string_view name() const override { return "mpi"; }
  std::shared_ptr<void> allocate(std::size_t bytes) override;
  std::vector<std::byte*> shared_places(void* own) override;
  std::unique_ptr<HostTransport> split(int colour, int key) override;
  std::uint64_t sent_bytes() const override;
  std::span<const int> node_of_rank() const override { return placement_.node_of; }
  std::size_t memory_bytes() const override;
  // Of what was sent, what the ranks that drive a part sent for it to those of other nodes.
  std::uint64_t wire_bytes() const;

 private:
  struct Part;  // of a shared all_reduce

  // Of a group: takes over its communicator. Collective over the group.
  MpiTransport(std::shared_ptr<MpiSession> session, Placement placement, MPI_Comm communicator);
  void connect_node();
  void connect_peers();
  // Collective. Whether windows of so many bytes for each rank fit on every node.
  bool windows_fit(std::size_t bytes);
  void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op) override;
  void reduce_scatter(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op) override;
  void all_gather(const void* send, void* recv, std::size_t count, DType dtype) override;
  void all_to_all(const void* send, void* recv, std::size_t count, DType dtype) override;
  void broadcast(void* data, std::size_t count, DType dtype, int root) override;
  void barrier() override;
  void all_reduce_shared(const NodeWindow& window, std::size_t offset, std::size_t count, DType dtype,
                         ReduceOp op);
  void reduce_over_nodes(const Part& part);
  // Points sources_ and destinations_ at `offset` bytes into every local rank's segment.
  void point_at(const NodeWindow& window, std::size_t offset);

  std::shared_ptr<MpiSession> session_;
  Placement placement_;
  std::uint64_t number_;
  MPI_Comm world_comm_ = MPI_COMM_NULL;
  MPI_Comm node_comm_ = MPI_COMM_NULL;
  MPI_Comm peers_comm_ = MPI_COMM_NULL;
  std::optional<MpiExchange> world_;
  std::optional<NodeGroup> node_;     // where several ranks share a node
  int parts_ = 1;                     // of a shared all_reduce: the first local ranks drive one each
  std::optional<MpiExchange> peers_;  // who drives the same part on every node, where there are several
  std::optional<NodeSums> sums_;      // of this node, for peers_
  std::optional<HierarchicalCollectives> over_nodes_;
  std::vector<std::shared_ptr<NodeWindow>> allocations_;
  std::optional<NodeCollectives> in_node_;  // where all ranks share one
  std::uint64_t allocated_ = 0;
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
  std::uint64_t shared_bytes_ = 0;
};

}  // namespace lockstep
