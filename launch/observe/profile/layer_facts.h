// SPDX-License-Identifier: Apache-2.0
//
// LayerFacts: the step-independent facts of each layer in a profile: name, shapes, position in the network
// and in the source code that describes it, and the allocations of the static memory plan when it runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "models/graph.h"
#include "models/network.h"

namespace lockstep {

// PyTorch's name of an element type.
const char* torch_name(DType type);

// Start or end of the lifetime of a block of the activation arena.
struct MemoryChange {
  std::size_t offset = 0;
  std::int64_t bytes = 0;  // below 0: the block is free again
};

class LayerFacts {
 public:
  // graph: the network was planned from it.
  LayerFacts(const Graph& graph, const Network& network);

  // "convolution forward".
  const std::string& name(std::size_t node, Direction direction) const {
    return layers_[node][static_cast<std::size_t>(direction)].name;
  }
  // Members of a JSON object: layer, node, "Input Dims" and "Input type" in PyTorch's format and, except for
  // generated layers, place and "Call stack".
  const std::string& arguments(std::size_t node, Direction direction) const {
    return layers_[node][static_cast<std::size_t>(direction)].arguments;
  }

  std::size_t nodes() const { return layers_.size(); }
  // The time at which it runs, in steps of the memory plan.
  int time(std::size_t node, Direction direction) const;
  // One more than the time of any layer: the pass has ended, and no block is live.
  int end_time() const { return static_cast<int>(changes_.size()) - 1; }
  // Changes from the previous time to this one: first the ends, then the starts.
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
