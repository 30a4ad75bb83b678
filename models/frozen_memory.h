// SPDX-License-Identifier: Apache-2.0
//
// FrozenMemory: the memory of a network's frozen layers (Graph::freeze), separate from trained memory: their
// parameters, the half copies that layers compute with, and running statistics. Training and evaluation read
// the same running statistics.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/state.h"
#include "core/tensor/buffer.h"
#include "core/tensor/parameter.h"
#include "kernels/backend.h"
#include "models/network_plan.h"

namespace lockstep {

class FrozenMemory {
 public:
  // type: the type that layers compute in; if it is not fp32, weights have a copy in it.
  FrozenMemory(const NetworkPlan& plan, Device device, DType type);
  // Bytes of all allocations.
  static std::size_t planned_bytes(const NetworkPlan& plan, DType type);

  // All values, including padding. A caller that writes them must call copy_weights().
  std::span<float> values() const {
    return {reinterpret_cast<float*>(values_.data()), values_.bytes() / sizeof(float)};
  }
  void copy_weights(Backend& backend, Stream& stream) const;
  // The state of a frozen node, in the order of its parameter_specs, then of its statistic_specs.
  std::span<const StateTensor> state(std::size_t node) const { return layers_[node].state; }
  // Points memory at this node's parameters and statistics, which this object owns.
  void bind(std::size_t node, LayerMemory& memory) const;

 private:
  struct FrozenLayer {
    std::vector<Parameter> parameters;
    std::vector<StateTensor> state;
  };
  void place(const PlannedNode& planned, std::int64_t& next, FrozenLayer& layer);

  DType type_;
  Buffer values_;
  Buffer copies_;                    // each at the same element index as its value
  std::vector<FrozenLayer> layers_;  // by node; empty for trained nodes
};

}  // namespace lockstep
