// SPDX-License-Identifier: Apache-2.0
//
// LayerProfile: the time of a step per layer and direction, compared with the machine's peak. Watches a
// Network through Pass::observer.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "core/timeline.h"
#include "kernels/backend.h"
#include "models/graph.h"
#include "models/network.h"

namespace lockstep {

// Names by node: the name of its parameters or, for a layer without parameters, its kind and the layer before
// it ("activation after bn1"). graph: the one that the network was planned from.
std::vector<std::string> names_of_nodes(const Graph& graph, const Network& network);
// "convolution"; "fork" for null: forks are nodes of no layer in the graph.
std::string kind_of_node(const Layer* layer);
// "forward", "recomputation", "backward". Layers that compute the two gradients separately have "gradient of
// weights" and "gradient of input" instead of the last.
std::string direction_name(const Layer* layer, Direction direction);

class LayerProfile final : public LayerObserver {
 public:
  // graph: the one that the network was planned from. All outlive this; timeline may be null.
  LayerProfile(const Graph& graph, const Network& network, Timeline* timeline);

  void layer_ran(std::size_t node, Direction direction, std::int64_t begin_ns, std::int64_t end_ns) override;
  // Discards the measurements so far.
  void clear();

  struct Row {
    std::string name;       // see names_of_nodes()
    std::string kind;       // "convolution"
    std::string direction;  // see direction_name()
    std::string kernel;     // the chosen kernel; empty if there was no choice
    double milliseconds = 0;
    double gigaflops = 0;             // 10^9 operations per second (executed_flops); 0: none
    double gigabytes_per_second = 0;  // reading and writing each tensor once
    double share_of_peak = 0;         // of the lower roof: operations in its precision, or memory; 0: unknown
    bool memory_bound = false;        // the lower roof is memory's
  };
  // Rows of one step, the longest first, after `steps` steps of `micro_batches` micro-batches were observed.
  // Rates of the peak that are 0 were not measured.
  std::vector<Row> rows(int steps, std::int64_t micro_batches, const Peak& peak) const;

 private:
  const Graph& graph_;
  const Network& network_;
  Timeline* timeline_;
  std::vector<std::string> names_;              // by node; spans point into them
  std::vector<std::array<double, 4>> seconds_;  // by node and direction
};

// Sums by "KIND, DIRECTION", the longest first.
std::vector<std::pair<std::string, double>> milliseconds_by_kind(std::span<const LayerProfile::Row> rows);

// Explains why rows are above 100 % of peak, one text per reason; empty if no row is.
std::vector<std::string> explain_above_peak(std::span<const LayerProfile::Row> rows);

// Collective. Calls measure() on all ranks at the same time, because they share the memory and power of a
// node in training, too. No rank returns, and uses a core for other work, before all have measured.
void measure_together(Communicator& host, const std::function<void()>& measure);

}  // namespace lockstep
