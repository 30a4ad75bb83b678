// SPDX-License-Identifier: Apache-2.0
//
// How much work a layer is, from its shapes alone: what a measured time is held against.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "models/graph.h"
#include "models/precision.h"

namespace lockstep {

// Floating-point operations, a multiply-add counted as two. Direct convolution's count, whatever algorithm
// runs; only convolution and linear layers count, the rest is bound by memory.
struct LayerFlops {
  std::int64_t forward = 0;
  std::int64_t backward_inputs = 0;      // 0 where nobody wants the gradient of the input
  std::int64_t backward_parameters = 0;  // 0 of a frozen layer

  std::int64_t total() const { return forward + backward_inputs + backward_parameters; }
};

// For the graph's batch.
LayerFlops flops_of(const Graph& graph, const Layer& layer);
// Of one training step of one micro-batch.
std::int64_t training_flops(const Graph& graph);

// Bytes a layer's forward must move at the least: every input and parameter read once, every output written
// once, in the type that the precision stores.
std::int64_t forward_bytes(const Graph& graph, const Layer& layer, Precision precision);

// Of which a layer's weights: 0 for one without products.
std::int64_t weight_bytes(const Graph& graph, const Layer& layer, Precision precision);

// Which of the peaks bounds products in a precision: fp32's, where its own was not measured.
double gigaflops_in(const Peak& peak, Precision precision);

}  // namespace lockstep
