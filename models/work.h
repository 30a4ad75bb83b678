// SPDX-License-Identifier: Apache-2.0
//
// The work of a layer, from its shapes and, where said, the chosen kernels, for comparison with measured
// times.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "models/graph.h"
#include "models/network_plan.h"
#include "models/precision.h"

namespace lockstep {

// Floating-point operations; a multiply-add counts as two. Counted as for direct convolution, whatever
// algorithm runs. Only convolution and linear layers count; all other layers are bound by memory.
struct LayerFlops {
  std::int64_t forward = 0;
  std::int64_t backward_inputs = 0;      // 0 if the input's gradient is not needed
  std::int64_t backward_parameters = 0;  // 0 for a frozen layer

  std::int64_t total() const { return forward + backward_inputs + backward_parameters; }
};

// The operations for the graph's batch.
LayerFlops flops_of(const Graph& graph, const Layer& layer);
// The operations of one training step on one micro-batch.
std::int64_t training_flops(const Graph& graph);
// The same as the kernels of the planned nodes execute them, each forward once. Products with padding do not
// count: oneDNN's direct kernels skip most of them, a GPU's multiply zeros. Winograd's F(4x4, 3x3) executes
// 36 products for each tile of 4x4 outputs of nine products each, also for a part of a tile; its transforms
// do not count.
double executed_flops(const Graph& graph, std::span<const PlannedNode> nodes);
// The operations of a layer as the kernels of its node execute them.
LayerFlops executed_flops(const Graph& graph, const PlannedNode& node);

// The minimum memory traffic of a layer's forward in bytes: every input and parameter read once, every output
// written once, in the precision's storage type.
std::int64_t forward_bytes(const Graph& graph, const Layer& layer, Precision precision);

// The part of forward_bytes() for weights; 0 for a layer without products.
std::int64_t weight_bytes(const Graph& graph, const Layer& layer, Precision precision);

// The peak rate that bounds products in a precision; the fp32 rate if that precision's was not measured.
double gigaflops_in(const Peak& peak, Precision precision);

}  // namespace lockstep
