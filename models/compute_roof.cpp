// SPDX-License-Identifier: Apache-2.0
#include "models/compute_roof.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/error.h"
#include "models/work.h"

namespace lockstep {
namespace {

constexpr double kMost = 0.7;  // fraction of `memory` that bound_by_memory covers

// The number of channels along a vector of one product: a group's outputs, or all channels for a depthwise
// convolution.
std::int64_t vector_channels(const Graph& graph, const Layer& layer) {
  if (const auto* o = std::get_if<ConvolutionOptions>(&layer.operation))
    return o->groups == graph.shape(layer.inputs[0])[1] ? o->channels : o->channels / o->groups;
  return std::get<LinearOptions>(layer.operation).features;
}

std::vector<std::string> dearest(const std::map<std::string, double>& seconds, double all) {
  std::vector<std::pair<std::string, double>> sorted(seconds.begin(), seconds.end());
  std::ranges::stable_sort(sorted, std::greater<>(), &std::pair<std::string, double>::second);
  std::vector<std::string> kinds;
  double told = 0;
  for (const auto& [kind, each] : sorted) {
    if (told >= kMost * all) break;
    kinds.push_back(kind);
    told += each;
  }
  return kinds;
}

// Forward and the gradients. Layers without products compute all their gradients in one pass. A gradient
// reads and writes tensors of the same sizes as forward.
std::vector<PassRoof> passes_of(const LayerFlops& flops, std::int64_t bytes, const DeviceRates& rates,
                                bool goes_backward) {
  if (flops.forward == 0) return {goes_backward ? 2u : 1u, PassRoof(0, bytes, rates)};
  std::vector<PassRoof> passes;
  for (const std::int64_t operations : {flops.forward, flops.backward_inputs, flops.backward_parameters})
    if (operations > 0) passes.emplace_back(operations, bytes, rates);
  return passes;
}

}  // namespace

ComputeRoof compute_roof(const Graph& graph, Precision precision, const DeviceRates& rates, int channels,
                         std::span<const PlannedNode> nodes) {
  CHECK(rates.gigaflops > 0 && rates.gigabytes_per_second > 0,
        "the rates must be positive: {} GFLOP/s, {} GB/s", rates.gigaflops, rates.gigabytes_per_second);
  ComputeRoof roof{.channels = channels};
  std::map<std::string, double> by_kind;
  double lost_in_all = 0, most_lost = 0;
  std::map<int, LayerFlops> executed;  // by layer
  for (const PlannedNode& node : nodes) executed.emplace(node.layer_index, executed_flops(graph, node));
  for (int index = 0; const Layer& layer : graph.layers()) {
    const auto planned = executed.find(index++);
    const LayerFlops flops = planned == executed.end() ? flops_of(graph, layer) : planned->second;
    const double weights = PassRoof(0, weight_bytes(graph, layer, precision), rates).memory;
    double products = 0;
    for (const PassRoof& pass : passes_of(flops, forward_bytes(graph, layer, precision), rates,
                                          graph.wants_gradient(layer.output))) {
      ++roof.kernels;
      products += pass.products;
      if (!pass.memory_bound()) continue;
      const double beyond = pass.memory - pass.products;
      roof.memory += beyond;
      roof.weights += std::min(weights, beyond);
      by_kind[std::string(kind_of(layer.operation))] += beyond;
    }
    if (products == 0) continue;
    roof.products += products;
    const std::int64_t used = vector_channels(graph, layer);
    const std::int64_t held = (used + channels - 1) / channels * channels;
    const double lost = products * (static_cast<double>(held) / static_cast<double>(used) - 1);
    lost_in_all += lost;
    if (lost <= most_lost) continue;
    most_lost = lost;
    roof.unfilled_layer = layer.name;
    roof.unfilled_channels = used;
  }
  if (lost_in_all > 0) roof.unfilled = lost_in_all / (roof.products + lost_in_all);
  roof.bound_by_memory = dearest(by_kind, roof.memory);
  return roof;
}

}  // namespace lockstep
