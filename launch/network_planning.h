// SPDX-License-Identifier: Apache-2.0
//
// NetworkPlanning: the network that a Config asks for, as a graph, and planned with kernels that all ranks
// share.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "data/dataset.h"
#include "launch/config/config.h"
#include "launch/devices/memory_need.h"
#include "models/graph.h"
#include "models/network.h"
#include "models/networks/networks.h"

namespace lockstep {

struct MemoryRemedy {
  std::string setting;  // "train.recompute=true"
  void (*apply)(Config& config);
};

class NetworkPlanning {
 public:
  // Builds the graph, for images of a shape and so many classes. ranks: with which batch norm is synchronised
  // where the configuration wants it.
  NetworkPlanning(const Config& config, const NetworkEntry& network, const Dataset& images, Device device,
                  int ranks);

  const Graph& graph() const { return graph_; }
  Device device() const { return device_; }
  // Of the network for micro-batches of so many samples, without making it.
  MemoryPlan memory(std::int64_t batch);
  // Throws ConfigError where batch norm cannot be trained on so many samples (launch/batch_norm_values.h).
  void require_batch_norm_values(std::int64_t samples) const;
  // What would make that less: settings that are not what they would have to be.
  std::vector<MemoryRemedy> remedies() const;
  // Kernels of an earlier run (to_text of its choices), to be used again where they can be. The same on every
  // rank. Throws DataError.
  void prefer(const std::string& choices);
  // Those of the network that was planned, as text.
  std::string choices() const;
  // Collective over a communicator of host memory; errors are agreed. Chooses kernels: rank 0's, which it
  // times or finds in the cache of its machine. What does not fit the budget throws its MemoryError.
  std::unique_ptr<Network> plan(Communicator& host, const MemoryBudget& budget);

 private:
  Graph build_graph(std::int64_t batch) const;
  NetworkOptions options();
  void tell_of_others() const;

  const Config& config_;
  const NetworkEntry& network_;
  GraphInput input_;
  Device device_;
  int ranks_;
  KernelChoices kernels_;
  std::map<std::string, KernelChoice> preferred_;
  Graph graph_;
};

}  // namespace lockstep
