// SPDX-License-Identifier: Apache-2.0
//
// NetworkPlanning: builds a Config's network as a graph, and plans it with kernels that all ranks share.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "data/dataset.h"
#include "launch/program/config/config.h"
#include "launch/program/devices/memory_need.h"
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
  // Builds the graph for the shape and classes of these images. ranks: number that synchronise batch norm, if
  // the configuration enables it. References outlive this.
  NetworkPlanning(const Config& config, const NetworkEntry& network, const Dataset& images, Device device,
                  int ranks);

  const Graph& graph() const { return graph_; }
  // The graph for micro-batches of another size.
  Graph build_graph(std::int64_t batch) const;
  Device device() const { return device_; }
  // Memory of the network for micro-batches of this size, without allocating it.
  MemoryPlan memory(std::int64_t batch);
  // Throws ConfigError if batch norm cannot be trained (launch/program/network/batch_norm_values.h).
  // samples: size of the training set.
  void require_batch_norm_values(std::int64_t samples) const;
  // Chooses what train.recompute = "auto" recomputes: the least work with which activations take at most this
  // many bytes. Without a call it recomputes as with "least".
  void choose_recompute(std::size_t most_activations);
  // The choice of this object, or of another rank's.
  const Recompute& recompute();
  void set_recompute(const Recompute& recompute) { recompute_ = recompute; }
  // From now on planned networks are only described: NetworkOptions::computes.
  void only_describe() { computes_ = false; }
  // Settings that would reduce memory() and are not set yet.
  std::vector<MemoryRemedy> remedies() const;
  // Reuses an earlier run's kernels (its choices()) where this machine has them. The same text on every rank.
  // Throws DataError.
  void prefer(const std::string& choices);
  // The planned network's kernels, as text.
  std::string choices() const;
  // Collective over host memory; errors are agreed. Uses rank 0's kernels, which it times or reads from its
  // machine's cache. The first call warns of ranks on other machines and of preferred kernels that are not
  // available. Throws the budget's MemoryError if the network does not fit.
  std::unique_ptr<Network> plan(Communicator& host, const MemoryBudget& budget);

 private:
  NetworkOptions options();
  NetworkOptions open_options();  // without the choice of recompute()
  void tell_of_others() const;

  const Config& config_;
  const NetworkEntry& network_;
  GraphInput input_;
  Device device_;
  int ranks_;
  KernelChoices kernels_;
  std::optional<Recompute> recompute_;  // empty: to be chosen
  std::map<std::string, KernelChoice> preferred_;
  bool computes_ = true;
  bool warned_ = false;
  Graph graph_;
};

}  // namespace lockstep
