// SPDX-License-Identifier: Apache-2.0
//
// LayerFacts: what a profile says of each layer, whatever step it ran in: what it is called, its shapes, its
// place in the network and in the source that describes the network, and what the static memory plan gives
// and takes when it runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "models/graph.h"
#include "models/network.h"

namespace lockstep {

// As PyTorch calls a type of elements.
const char* torch_name(DType type);

// Of a block of the activation arena.
struct MemoryChange {
  std::size_t offset = 0;
  std::int64_t bytes = 0;  // below 0: nobody reads it any more
};

class LayerFacts {
 public:
  // graph is what the network was planned from.
  LayerFacts(const Graph& graph, const Network& network);

  // "convolution forward".
  const std::string& name(std::size_t node, Direction direction) const {
    return layers_[node][static_cast<std::size_t>(direction)].name;
  }
  // Members of a JSON object: layer, node, "Input Dims" and "Input type" as PyTorch writes them and, but for
  // layers that nobody wrote, place and "Call stack".
  const std::string& arguments(std::size_t node, Direction direction) const {
    return layers_[node][static_cast<std::size_t>(direction)].arguments;
  }

  std::size_t nodes() const { return layers_.size(); }
  // When it runs, in steps of the memory plan.
  int time(std::size_t node, Direction direction) const;
  // One more than that of any layer: a pass has ended, and nothing is alive.
  int end_time() const { return static_cast<int>(changes_.size()) - 1; }
  // From the step before to this one: first what ends, then what begins.
  const std::vector<MemoryChange>& changes(int time) const {
    return changes_[static_cast<std::size_t>(time)];
  }
  std::size_t arena_bytes() const { return arena_bytes_; }

 private:
  struct Facts {
    std::string name, arguments;
  };
  void plan_changes(const NetworkPlan& plan);

  std::vector<std::vector<Facts>> layers_;  // by node and direction
  std::vector<NodeTimes> times_;
  std::vector<std::vector<MemoryChange>> changes_;  // by time
  std::size_t arena_bytes_ = 0;
};

}  // namespace lockstep
