// SPDX-License-Identifier: Apache-2.0
#include "models/frozen_memory.h"

namespace lockstep {
namespace {

// Padded so that both a value and its half copy at the same element are aligned.
std::int64_t frozen_elements(const ParameterSpec& spec) {
  const auto elements = static_cast<std::size_t>(spec.layout.physical_elements());
  return static_cast<std::int64_t>(align_up(elements * sizeof(Half)) / sizeof(Half));
}

std::size_t frozen_elements(const NetworkPlan& plan) {
  std::int64_t elements = 0;
  for (const PlannedNode& node : plan.nodes) {
    if (!node.frozen) continue;
    for (const auto* specs : {&node.layer->parameter_specs(), &node.layer->statistic_specs()})
      for (const ParameterSpec& spec : *specs) elements += frozen_elements(spec);
  }
  return static_cast<std::size_t>(elements);
}

std::size_t bytes_of_a_copy(DType type) { return type == DType::f32 ? 0 : size_of(type); }

}  // namespace

FrozenMemory::FrozenMemory(const NetworkPlan& plan, Device device, DType type)
    : type_(type),
      values_(frozen_elements(plan) * sizeof(float), device),
      copies_(frozen_elements(plan) * bytes_of_a_copy(type), device),
      layers_(plan.nodes.size()) {
  std::int64_t next = 0;
  for (std::size_t node = 0; node < layers_.size(); ++node)
    if (plan.nodes[node].frozen) place(plan.nodes[node], next, layers_[node]);
}

std::size_t FrozenMemory::planned_bytes(const NetworkPlan& plan, DType type) {
  return frozen_elements(plan) * (sizeof(float) + bytes_of_a_copy(type));
}

void FrozenMemory::place(const PlannedNode& planned, std::int64_t& next, FrozenLayer& layer) {
  const auto add = [&](const ParameterSpec& spec, bool is_statistic) {
    layer.state.push_back({.name = planned.name + "." + spec.suffix,
                           .layout = spec.layout.as_type(DType::f32),
                           .value = values().data() + next,
                           .elements = frozen_elements(spec),
                           .is_statistic = is_statistic});
    next += frozen_elements(spec);
  };
  for (const ParameterSpec& spec : planned.layer->parameter_specs()) {
    Parameter& parameter = layer.parameters.emplace_back();
    parameter.offset = next;
    add(spec, false);
    const StateTensor& state = layer.state.back();
    parameter.name = state.name;
    parameter.layout = state.layout;
    parameter.gradient_type = spec.layout.dtype();
    parameter.value = state.value;
    parameter.weights = state.value;
    if (spec.layout.dtype() != DType::f32)
      parameter.weights = copies_.data() + static_cast<std::size_t>(parameter.offset) * size_of(type_);
  }
  for (const ParameterSpec& spec : planned.layer->statistic_specs()) add(spec, true);
}

void FrozenMemory::copy_weights(Backend& backend, Stream& stream) const {
  if (copies_.bytes() == 0) return;
  backend.cast(stream, {.count = static_cast<std::int64_t>(values().size()),
                        .from_type = DType::f32,
                        .to_type = type_,
                        .from = values().data(),
                        .to = copies_.data()});
}

void FrozenMemory::bind(std::size_t node, LayerMemory& memory) const {
  for (const Parameter& parameter : layers_[node].parameters) memory.parameters.push_back(&parameter);
  for (const StateTensor& state : layers_[node].state)
    if (state.is_statistic) memory.statistics.push_back(state.value);
  memory.evaluation_statistics = memory.statistics;
}

}  // namespace lockstep
