// SPDX-License-Identifier: Apache-2.0
//
// LayerProfile: where the time of a step goes, layer by layer and direction by direction, held against what
// the machine could do. Watches a Network through Pass::observer.
#pragma once

#include <array>
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

// All of them, in the order in which a step runs them.
inline constexpr std::array kDirections = {Direction::forward, Direction::recompute,
                                           Direction::backward_parameters, Direction::backward_inputs};

// By node: the name of its parameters or, of a layer without any, its kind and the layer that it comes after.
// graph is what the network was planned from.
std::vector<std::string> names_of_nodes(const Graph& graph, const Network& network);
// "convolution"; null: a fork, which no graph has.
std::string kind_of_node(const Layer* layer);
// "forward", "recomputation", "backward", or what layers with products compute apart: "gradient of weights",
// "gradient of input".
std::string direction_name(const Layer* layer, Direction direction);

class LayerProfile final : public LayerObserver {
 public:
  // graph is what the network was planned from; both, and the timeline (may be null), must outlive this.
  LayerProfile(const Graph& graph, const Network& network, Timeline* timeline);

  void layer_ran(std::size_t node, Direction direction, std::int64_t begin_ns, std::int64_t end_ns) override;
  // Forgets what was measured so far.
  void clear();

  struct Row {
    std::string name;       // of the parameters, or the layer's place
    std::string kind;       // "convolution"
    std::string direction;  // "forward", "gradient of weights", "gradient of input"
    std::string kernel;     // what was chosen, where there was a choice
    double milliseconds = 0;
    double gigaflops = 0;             // 10^9 operations per second, counted as direct convolution; 0: none
    double gigabytes_per_second = 0;  // tensors read and written once over the time
    double share_of_peak = 0;   // of the ceiling that is nearer: of operations in its precision or of memory
    bool memory_bound = false;  // which is that of memory
  };
  // Returns the rows of one step, the longest first, after `steps` steps were watched. A layer is named by
  // what it computes on.
  std::vector<Row> rows(int steps, const Peak& peak) const;

 private:
  const Graph& graph_;
  const Network& network_;
  Timeline* timeline_;
  std::vector<std::string> names_;              // by node; spans point into them
  std::vector<std::array<double, 4>> seconds_;  // by node and direction
};

// By "KIND, DIRECTION", the longest first.
std::vector<std::pair<std::string, double>> milliseconds_by_kind(std::span<const LayerProfile::Row> rows);

// Why a row is above 100 % of peak, a line for each reason there is; empty where none is.
std::vector<std::string> explain_above_peak(std::span<const LayerProfile::Row> rows);

// Collective. Calls measure() on all ranks at the same time: as they compute, sharing the memory and
// the power of a node. Nobody goes on, to burn a core somewhere else, before all have measured.
void measure_together(Communicator& host, const std::function<void()>& measure);

}  // namespace lockstep
