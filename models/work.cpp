// SPDX-License-Identifier: Apache-2.0
#include "models/work.h"

#include <cmath>
#include <string>

namespace lockstep {
namespace {

std::int64_t parameter_elements(const Graph& graph, const Layer& layer) {
  const Shape& in = graph.shape(layer.inputs[0]);
  if (const auto* o = std::get_if<ConvolutionOptions>(&layer.operation)) {
    return o->channels * (in[1] / o->groups) * o->kernel * o->kernel;
  }
  if (const auto* o = std::get_if<LinearOptions>(&layer.operation)) {
    return o->features * (in.elements() / in[0]);
  }
  return 0;
}

// The share of a convolution's taps along one dimension that lie inside the image, not in its padding.
double share_inside(const ConvolutionOptions& o, std::int64_t in, std::int64_t out) {
  std::int64_t inside = 0;
  for (std::int64_t position = 0; position < out; ++position)
    for (std::int64_t tap = 0; tap < o.kernel; ++tap) {
      const std::int64_t place = position * o.stride - o.padding + tap * o.dilation;
      inside += place >= 0 && place < in;
    }
  return static_cast<double>(inside) / static_cast<double>(out * o.kernel);
}

}  // namespace

LayerFlops flops_of(const Graph& graph, const Layer& layer) {
  const std::int64_t weights = parameter_elements(graph, layer);
  if (weights == 0) return {};
  const Shape& out = graph.shape(layer.output);
  const std::int64_t positions = out.rank() == 4 ? out[0] * out[2] * out[3] : out[0];
  const std::int64_t flops = 2 * weights * positions;
  return {.forward = flops,
          .backward_inputs = graph.wants_gradient(layer.inputs[0]) ? flops : 0,
          .backward_parameters = layer.frozen ? 0 : flops};
}

std::int64_t training_flops(const Graph& graph) {
  std::int64_t sum = 0;
  for (const Layer& layer : graph.layers()) sum += flops_of(graph, layer).total();
  return sum;
}

LayerFlops executed_flops(const Graph& graph, const PlannedNode& node) {
  if (node.layer_index < 0) return {};
  const Layer& layer = graph.layers()[static_cast<std::size_t>(node.layer_index)];
  const auto* convolution = std::get_if<ConvolutionOptions>(&layer.operation);
  const auto executed = [&](std::int64_t operations, Direction direction) -> std::int64_t {
    if (operations == 0 || convolution == nullptr) return operations;
    const Shape &in = graph.shape(layer.inputs[0]), &out = graph.shape(layer.output);
    if (node.layer->choice(direction).find("winograd") == std::string::npos) {
      const double share =
          share_inside(*convolution, in[2], out[2]) * share_inside(*convolution, in[3], out[3]);
      return std::llround(static_cast<double>(operations) * share);
    }
    const Shape& to = direction == Direction::backward_inputs ? in : out;
    const std::int64_t tiles = (to[2] + 3) / 4 * ((to[3] + 3) / 4);
    return std::llround(static_cast<double>(operations) * 4 * static_cast<double>(tiles) /
                        static_cast<double>(to[2] * to[3]));
  };
  const LayerFlops direct = flops_of(graph, layer);
  return {.forward = executed(direct.forward, Direction::forward),
          .backward_inputs = executed(direct.backward_inputs, Direction::backward_inputs),
          .backward_parameters = executed(direct.backward_parameters, Direction::backward_parameters)};
}

double executed_flops(const Graph& graph, std::span<const PlannedNode> nodes) {
  double sum = 0;
  for (const PlannedNode& node : nodes) sum += static_cast<double>(executed_flops(graph, node).total());
  return sum;
}

std::int64_t forward_bytes(const Graph& graph, const Layer& layer, Precision precision) {
  std::int64_t elements = parameter_elements(graph, layer) + graph.shape(layer.output).elements();
  for (const Value input : layer.inputs) elements += graph.shape(input).elements();
  return elements * static_cast<std::int64_t>(size_of(storage_type(precision)));
}

std::int64_t weight_bytes(const Graph& graph, const Layer& layer, Precision precision) {
  return parameter_elements(graph, layer) * static_cast<std::int64_t>(size_of(storage_type(precision)));
}

double gigaflops_in(const Peak& peak, Precision precision) {
  if (precision == Precision::bf16 && peak.bf16_gigaflops > 0) return peak.bf16_gigaflops;
  const double own = storage_type(precision) != DType::f32 ? peak.half_gigaflops
                     : precision == Precision::tf32        ? peak.tf32_gigaflops
                                                           : peak.gigaflops;
  return own > 0 ? own : peak.gigaflops;
}

}  // namespace lockstep
