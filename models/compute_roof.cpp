// SPDX-License-Identifier: Apache-2.0
#include "models/compute_roof.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "models/work.h"

namespace lockstep {
namespace {

constexpr double kMost = 0.7;  // of what layers bound by memory take is told by their kinds

// That one product's vectors lie along: those of a group's outputs, and across groups where each channel is
// convolved with itself.
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

}  // namespace

ComputeRoof compute_roof(const Graph& graph, Precision precision, const DeviceRates& rates, int channels) {
  CHECK(rates.gigaflops > 0 && rates.gigabytes_per_second > 0, "rates of {} GFLOP/s, {} GB/s",
        rates.gigaflops, rates.gigabytes_per_second);
  ComputeRoof roof;
  std::map<std::string, double> by_kind;
  double with_full_vectors = 0, most_lost = 0;
  for (const Layer& layer : graph.layers()) {
    const LayerFlops flops = flops_of(graph, layer);
    const double moving =
        static_cast<double>(forward_bytes(graph, layer, precision)) / rates.gigabytes_per_second * 1e-9;
    const double weights =
        static_cast<double>(weight_bytes(graph, layer, precision)) / rates.gigabytes_per_second * 1e-9;
    // A gradient reads and writes tensors of the sizes that forward does; layers without products make theirs
    // at once.
    const std::int64_t passes[] = {flops.forward, flops.backward_inputs, flops.backward_parameters};
    const bool multiplies = flops.forward > 0;
    for (std::size_t pass = 0; pass < (multiplies ? 3 : 2); ++pass) {
      if (multiplies && passes[pass] == 0) continue;
      ++roof.kernels;
      const double computing = multiplies ? static_cast<double>(passes[pass]) / rates.gigaflops * 1e-9 : 0;
      roof.products += computing;
      if (moving <= computing) continue;
      roof.memory += moving - computing;
      roof.weights += std::min(weights, moving - computing);
      by_kind[std::string(kind_of(layer.operation))] += moving - computing;
    }
    if (!multiplies) continue;
    const std::int64_t used = vector_channels(graph, layer);
    const std::int64_t held = (used + channels - 1) / channels * channels;
    const double computing = static_cast<double>(flops.total()) / rates.gigaflops * 1e-9;
    const double lost = computing * (static_cast<double>(held) / static_cast<double>(used) - 1);
    with_full_vectors += computing + lost;
    if (lost <= most_lost) continue;
    most_lost = lost;
    roof.unfilled_layer = fmt::format("{} ({} channels)", layer.name, used);
  }
  if (with_full_vectors > 0) roof.unfilled = 1 - roof.products / with_full_vectors;
  roof.bound_by_memory = dearest(by_kind, roof.memory);
  return roof;
}

}  // namespace lockstep
