// SPDX-License-Identifier: Apache-2.0
//
// FrozenMemory: what the layers of a network that are frozen (Graph::freeze) hold, apart from what training
// moves: their parameters, half copies of these to compute with, and running statistics, of which training
// and evaluation read one set.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/buffer.h"
#include "core/parameter.h"
#include "core/state.h"
#include "kernels/backend.h"
#include "models/network_plan.h"

namespace lockstep {

class FrozenMemory {
 public:
  // type: in which layers compute, and weights are copied where that is not fp32.
  FrozenMemory(const NetworkPlan& plan, Device device, DType type);
  // Of all it allocates.
  static std::size_t planned_bytes(const NetworkPlan& plan, DType type);

  // All values, padding included. Who writes them calls copy_weights().
  std::span<float> values() const {
    return {reinterpret_cast<float*>(values_.data()), values_.bytes() / sizeof(float)};
  }
  void copy_weights(Backend& backend, Stream& stream) const;
  // Of a frozen node, in the order of its parameter_specs, then of its statistic_specs.
  std::span<const StateTensor> state(std::size_t node) const { return layers_[node].state; }
  // Valid as long as this is.
  void bind(std::size_t node, LayerMemory& memory) const;

 private:
  struct FrozenLayer {
    std::vector<Parameter> parameters;
    std::vector<StateTensor> state;
  };
  void place(const PlannedNode& planned, std::int64_t& next, FrozenLayer& layer);

  DType type_;
  Buffer values_;
  Buffer copies_;                    // each at the element of the value that it is of
  std::vector<FrozenLayer> layers_;  // by node; empty where it is trained
};

}  // namespace lockstep
