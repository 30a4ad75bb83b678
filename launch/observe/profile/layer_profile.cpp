// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/profile/layer_profile.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "models/compute_roof.h"
#include "models/work.h"

namespace lockstep {
namespace {

std::int64_t flops_in(const LayerFlops& flops, Direction direction) {
  switch (direction) {
    case Direction::forward:
    case Direction::recompute:
      return flops.forward;
    case Direction::backward_parameters:
      return flops.backward_parameters;
    case Direction::backward_inputs:
      return flops.backward_inputs;
  }
  return 0;
}

// Returns null for a fork.
const Layer* layer_of(const Graph& graph, const PlannedNode& node) {
  return node.layer_index < 0 ? nullptr : &graph.layers()[static_cast<std::size_t>(node.layer_index)];
}

}  // namespace

std::vector<std::string> names_of_nodes(const Graph& graph, const Network& network) {
  std::vector<std::string> names;
  for (const PlannedNode& node : network.nodes()) {
    if (!node.name.empty()) {
      names.push_back(node.name);
      continue;
    }
    const std::string kind = kind_of_node(layer_of(graph, node));
    // Uses the name of the nearest named layer before it.
    names.push_back(names.empty()
                        ? kind
                        : fmt::format("{} after {}", kind, names.back().substr(names.back().rfind(' ') + 1)));
  }
  return names;
}

std::string kind_of_node(const Layer* layer) {
  return layer == nullptr ? "fork" : std::string(kind_of(layer->operation));
}

// Convolution and linear layers compute the two gradients separately; all other layers compute them together.
std::string direction_name(const Layer* layer, Direction direction) {
  if (direction == Direction::forward) return "forward";
  if (direction == Direction::recompute) return "recomputation";
  const bool apart = layer != nullptr && (std::holds_alternative<ConvolutionOptions>(layer->operation) ||
                                          std::holds_alternative<LinearOptions>(layer->operation));
  if (!apart) return "backward";
  return direction == Direction::backward_parameters ? "gradient of weights" : "gradient of input";
}

LayerProfile::LayerProfile(const Graph& graph, const Network& network, Timeline* timeline)
    : graph_(graph),
      network_(network),
      timeline_(timeline),
      names_(names_of_nodes(graph, network)),
      seconds_(network.nodes().size()) {}

void LayerProfile::layer_ran(std::size_t node, Direction direction, std::int64_t begin_ns,
                             std::int64_t end_ns) {
  seconds_[node][static_cast<std::size_t>(direction)] += seconds_between(begin_ns, end_ns);
  if (timeline_ == nullptr) return;
  timeline_->record({.name = names_[node].c_str(),
                     .track = Track::compute,
                     .index = static_cast<std::int32_t>(node),
                     .begin_ns = begin_ns,
                     .end_ns = end_ns});
}

void LayerProfile::clear() { std::ranges::fill(seconds_, std::array<double, 4>{}); }

std::vector<LayerProfile::Row> LayerProfile::rows(int steps, std::int64_t micro_batches,
                                                  const Peak& peak) const {
  const Precision precision = network_.precision();
  const DeviceRates rates{.gigaflops = gigaflops_in(peak, precision),
                          .gigabytes_per_second = peak.gigabytes_per_second};
  const bool measured = rates.gigaflops > 0 && rates.gigabytes_per_second > 0;
  std::vector<Row> rows;
  for (std::size_t node = 0; node < seconds_.size(); ++node) {
    const PlannedNode& planned = network_.nodes()[node];
    const Layer* layer = layer_of(graph_, planned);
    const LayerFlops flops = executed_flops(graph_, planned);
    for (const Direction direction : kDirections) {
      const double seconds = seconds_[node][static_cast<std::size_t>(direction)] / steps;
      const std::int64_t operations = flops_in(flops, direction);
      // A gradient reads and writes tensors of the same sizes as forward.
      const std::int64_t bytes = layer == nullptr ? 0 : forward_bytes(graph_, *layer, precision);
      if (seconds < 1e-6) continue;
      const double once = seconds / static_cast<double>(micro_batches);  // the operations' and bytes' time
      rows.push_back({.name = names_[node],
                      .kind = kind_of_node(layer),
                      .direction = direction_name(layer, direction),
                      .kernel = planned.layer->choice(direction),
                      .milliseconds = seconds * 1e3,
                      .gigaflops = static_cast<double>(operations) / once * 1e-9,
                      .gigabytes_per_second = static_cast<double>(bytes) / once * 1e-9});
      if (!measured) continue;
      const PassRoof roof(operations, bytes, rates);
      rows.back().share_of_peak = roof.seconds() / once;
      rows.back().memory_bound = roof.memory_bound();
    }
  }
  std::ranges::stable_sort(rows, std::greater<>(), &Row::milliseconds);
  return rows;
}

std::vector<std::pair<std::string, double>> milliseconds_by_kind(std::span<const LayerProfile::Row> rows) {
  std::map<std::string, double> kinds;
  for (const LayerProfile::Row& row : rows) kinds[row.kind + ", " + row.direction] += row.milliseconds;
  std::vector<std::pair<std::string, double>> sorted(kinds.begin(), kinds.end());
  std::ranges::stable_sort(sorted, std::greater<>(), &std::pair<std::string, double>::second);
  return sorted;
}

std::vector<std::string> explain_above_peak(std::span<const LayerProfile::Row> rows) {
  bool cached = false, slow_peak = false;
  for (const LayerProfile::Row& row : rows)  // printed as at most 100 % below 1.005
    if (row.share_of_peak >= 1.005) (row.memory_bound ? cached : slow_peak) = true;
  std::vector<std::string> lines;
  if (cached) {
    lines.emplace_back(
        "above 100 % of peak: a cache returns tensors faster than memory, and the peak\n"
        "    is that of memory");
  }
  if (slow_peak) {
    lines.emplace_back(
        "above 100 % of peak: the machine was busy while its peak was measured;\n"
        "    profile again when it is idle");
  }
  return lines;
}

void measure_together(Communicator& host, const std::function<void()>& measure) {
  const auto meet = [&] {
    host.barrier();
    host.stream().synchronize();
  };
  meet();
  measure();
  meet();
}

}  // namespace lockstep
