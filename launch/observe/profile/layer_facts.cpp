// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/profile/layer_facts.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/text/json_text.h"
#include "launch/observe/profile/layer_profile.h"

namespace lockstep {
namespace {

using TraceJson = nlohmann::ordered_json;

// The path of a source file, relative to Lockstep's source tree if it is inside.
std::string source_file(std::string_view path) {
  constexpr std::string_view kThisFile = "launch/observe/profile/layer_facts.cpp";
  std::string_view root = __FILE__;
  root.remove_suffix(kThisFile.size());
  return std::string(path.starts_with(root) ? path.substr(root.size()) : path);
}

void add_tensor(TraceJson& arguments, const Layout& layout) {
  arguments["Input Dims"].push_back(layout.shape().dims());
  arguments["Input type"].push_back(torch_name(layout.dtype()));
}

// Backward also reads the gradient of the layer's output.
void add_inputs(TraceJson& arguments, const Network& network, std::size_t node, Direction direction) {
  const PlannedNode& planned = network.nodes()[node];
  arguments["Input Dims"] = arguments["Input type"] = TraceJson::array();
  if (direction == Direction::backward_parameters || direction == Direction::backward_inputs)
    add_tensor(arguments, planned.layer->output());
  for (const int input : planned.inputs)
    add_tensor(arguments, network.plan().values[static_cast<std::size_t>(input)].layout);
  for (const ParameterSpec& spec : planned.layer->parameter_specs()) add_tensor(arguments, spec.layout);
}

std::string arguments_of(const Network& network, std::size_t node, Direction direction,
                         const std::string& layer_name, const Layer* layer) {
  TraceJson arguments;
  arguments["layer"] = layer_name;
  arguments["node"] = node;
  if (const std::string kernel = network.nodes()[node].layer->choice(direction); !kernel.empty())
    arguments["kernel"] = kernel;
  add_inputs(arguments, network, node, direction);
  if (layer != nullptr && layer->place.line() > 0) {
    const std::string file = source_file(layer->place.file_name());
    arguments["place"] = fmt::format("{}:{}", file, layer->place.line());
    arguments["Call stack"] = fmt::format("{}({}): {}", file, layer->place.line(), layer_name);
  }
  const std::string object = dumped(arguments);
  return object.substr(1, object.size() - 2);
}

}  // namespace

const char* torch_name(DType type) {
  constexpr const char* kNames[] = {"float", "c10::Half", "c10::BFloat16", "unsigned char", "int"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(DType::i32) + 1);
  return kNames[static_cast<std::size_t>(type)];
}

LayerFacts::LayerFacts(const Graph& graph, const Network& network) : times_(network.plan().times) {
  const std::vector<std::string> names = names_of_nodes(graph, network);
  for (std::size_t node = 0; node < network.nodes().size(); ++node) {
    const int index = network.nodes()[node].layer_index;
    const Layer* layer = index < 0 ? nullptr : &graph.layers()[static_cast<std::size_t>(index)];
    std::vector<Facts>& facts = layers_.emplace_back();
    for (const Direction direction : kDirections) {
      facts.push_back({.name = fmt::format("{} {}", kind_of_node(layer), direction_name(layer, direction)),
                       .arguments = arguments_of(network, node, direction, names[node], layer)});
    }
  }
  plan_changes(network.plan());
}

int LayerFacts::time(std::size_t node, Direction direction) const {
  if (direction == Direction::forward) return times_[node].forward;
  return direction == Direction::recompute ? times_[node].recompute : times_[node].backward;
}

void LayerFacts::plan_changes(const NetworkPlan& plan) {
  arena_bytes_ = plan.arena.bytes;
  int last = 0;
  for (const NodeTimes& times : plan.times) last = std::max(last, times.backward);
  std::vector<std::vector<MemoryChange>> ends(static_cast<std::size_t>(last) + 2), begins(ends.size());
  const auto live = [&](std::size_t block, const Lifetime& life) {
    const std::size_t offset = plan.arena.offsets[block];
    const auto bytes = static_cast<std::int64_t>(plan.blocks[block].bytes);
    begins[static_cast<std::size_t>(life.first)].push_back({offset, bytes});
    ends[static_cast<std::size_t>(life.last) + 1].push_back({offset, -bytes});
  };
  for (std::size_t block = 0; block < plan.blocks.size(); ++block) {
    const auto& [bytes, life, again] = plan.blocks[block];
    const bool at_once = again && again->first <= life.last;  // tensors with two lifetimes share the block
    live(block, at_once ? Lifetime{life.first, std::max(life.last, again->last)} : life);
    if (again && !at_once) live(block, *again);
  }
  for (std::size_t time = 0; time < ends.size(); ++time) {
    ends[time].insert(ends[time].end(), begins[time].begin(), begins[time].end());
    changes_.push_back(std::move(ends[time]));
  }
}

}  // namespace lockstep
