// SPDX-License-Identifier: Apache-2.0
#include "launch/program/setup/frozen_layers.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include <fmt/ranges.h>

#include "core/error.h"
#include "launch/program/config/config_keys.h"
#include "launch/program/config/suggestions.h"

namespace lockstep {
namespace {

// Prefixes of the names of layers with parameters: "layer1", "layer1.0", "layer1.0.conv1", ...
std::vector<std::string> prefixes_of(const Graph& graph) {
  std::vector<std::string> prefixes;
  for (const Layer& layer : graph.layers()) {
    if (!has_parameters(layer.operation)) continue;
    for (std::size_t dot = layer.name.find('.');; dot = layer.name.find('.', dot + 1)) {
      const std::string prefix = layer.name.substr(0, dot);
      if (std::ranges::find(prefixes, prefix) == prefixes.end()) prefixes.push_back(prefix);
      if (dot == std::string::npos) break;
    }
  }
  return prefixes;
}

// The top-level names, for messages.
std::vector<std::string> first_components(const std::vector<std::string>& prefixes) {
  std::vector<std::string> first;
  std::ranges::copy_if(prefixes, std::back_inserter(first),
                       [](const std::string& prefix) { return prefix.find('.') == std::string::npos; });
  return first;
}

[[noreturn]] void refuse_unknown(const Graph& graph, const std::string& prefix) {
  const std::vector<std::string> known = prefixes_of(graph);
  const std::string layer = prefix.substr(0, prefix.rfind('.'));
  const bool of_a_layer = layer != prefix && std::ranges::count(known, layer) > 0;
  if (of_a_layer && (prefix.ends_with(".weight") || prefix.ends_with(".bias")))
    throw ConfigError(
        fmt::format("model.freeze: \"{}\" is a parameter; freeze its whole layer, \"{}\"", prefix, layer));
  throw ConfigError(fmt::format("model.freeze: no layer's name begins with {}{} The network has {}",
                                detail::quoted(prefix),
                                nearest(prefix, known).empty() ? "." : did_you_mean(nearest(prefix, known)),
                                fmt::join(first_components(known), ", ")));
}

}  // namespace

void freeze_layers(Graph& graph, std::span<const std::string> prefixes) {
  for (const std::string& prefix : prefixes)
    if (graph.freeze(prefix) == 0) refuse_unknown(graph, prefix);
  if (!graph.wants_gradient(graph.logits()))
    throw ConfigError(
        fmt::format("model.freeze = [{}] leaves no layer to train; do not freeze the last one, \"{}\"",
                    fmt::join(prefixes, ", "), graph.head().name));
}

}  // namespace lockstep
