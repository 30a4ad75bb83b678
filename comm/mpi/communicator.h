// SPDX-License-Identifier: Apache-2.0
//
// MpiTransport: the collectives of CPU ranks under mpirun. An all_reduce of memory from allocate() works in
// place in the shared memory of a node: local rank l sums part l of all local ranks' data as far as the tree
// over all ranks allows (comm/sums/sum_tree.h), exchanges these partial sums with local rank l of the other
// nodes, and writes the total into all local ranks' data. There are as many parts as ranks on the smallest
// node. If all ranks are on one node, all other collectives use shared memory, too (NodeCollectives). On
// several nodes reduce_scatter, all_gather and broadcast use it inside each node (HierarchicalCollectives).
// Everything else uses messages, also if no node has two ranks or /dev/shm has no room. All ways add along
// the same tree and give the same bits.
//
// The destructor does not wait: what only all ranks together can free is left to the session.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/in_process/host_communicator.h"
#include "comm/mpi/exchange.h"
#include "comm/mpi/hierarchical_collectives.h"
#include "comm/mpi/node/collectives.h"
#include "comm/mpi/node/group.h"
#include "comm/mpi/node/sums.h"
#include "comm/mpi/session.h"

namespace lockstep {

class MpiTransport final : public HostTransport {
 public:
  // Collective over all ranks. placement: where they are.
  MpiTransport(std::shared_ptr<MpiSession> session, Placement placement);
  ~MpiTransport() override;

  std::string_view name() const override { return "mpi"; }
  std::shared_ptr<void> allocate(std::size_t bytes) override;
  std::vector<std::byte*> shared_places(void* own) override;
  std::unique_ptr<HostTransport> split(int colour, int key) override;
  std::uint64_t sent_bytes() const override;
  std::span<const int> node_of_rank() const override { return placement_.node_of; }
  std::size_t memory_bytes() const override;
  // The part of sent_bytes() that ranks that drive a part sent to those of other nodes.
  std::uint64_t wire_bytes() const;

 private:
  struct Part;  // of a shared all_reduce

  // Collective over the group of `communicator`, which this takes over.
  MpiTransport(std::shared_ptr<MpiSession> session, Placement placement, MPI_Comm communicator);
  void connect_node();
  void connect_peers();
  // Collective. True if windows of `bytes` for each rank fit on every node.
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
  MPI_Comm node_comm_ = MPI_COMM_NULL;  // world_comm_ if all ranks are on one node
  MPI_Comm peers_comm_ = MPI_COMM_NULL;
  std::optional<MpiExchange> world_;
  std::vector<std::shared_ptr<NodeWindow>> allocations_;
  std::optional<NodeGroup> node_;     // if a node has several ranks
  int parts_ = 1;                     // of a shared all_reduce: the first local ranks drive one each
  std::optional<MpiExchange> peers_;  // the ranks that drive the same part, if there are several nodes
  std::optional<NodeSums> sums_;      // of this node, for peers_
  std::optional<HierarchicalCollectives> over_nodes_;
  std::optional<NodeCollectives> in_node_;  // if all ranks share a node
  std::uint64_t allocated_ = 0;
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
  std::uint64_t shared_bytes_ = 0;
};

}  // namespace lockstep
