// SPDX-License-Identifier: Apache-2.0
//
// Finalizing descriptors: checks their attributes and creates their bodies. This file handles engines,
// configurations and plans; cudnn_operations.cpp handles graphs.
#include <atomic>
#include <deque>
#include <mutex>
#include <set>

#include "tests/cuda_emulator/libraries/cudnn_descriptor.h"
#include "tests/cuda_emulator/libraries/cudnn_device.h"
#include "tests/cuda_emulator/libraries/cudnn_engines.h"
#include "tests/cuda_emulator/libraries/cudnn_operations.h"
#include "tests/cuda_emulator/thread_sanitizer.h"

namespace lockstep::emulator::cudnn {
namespace {

// The device to plan for: the described device, or the device of the graph's handle.
Target target_of(const Descriptor& d, cudnnBackendAttributeName_t properties, const Graph& graph) {
  if (d.has(properties)) return *d.referred_to<Target>(properties);
  require(graph.device >= 0, CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
          "the graph has no handle, and no device properties are given");
  return target_of_device(graph.device);
}

std::shared_ptr<Descriptor> finalized(cudnnBackendDescriptorType_t type) {
  auto descriptor = std::make_shared<Descriptor>(Descriptor{.type = type});
  descriptor->finalized = true;
  return descriptor;
}

void fill_engine(Descriptor& d, const Engine& engine) {
  d.put(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, std::vector{engine.index});
  d.put(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, engine.numerical_notes);
  d.put(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, engine.behavior_notes);
  std::vector<std::shared_ptr<Descriptor>> knobs;
  for (const Knob& knob : engine.knobs) {
    knobs.push_back(finalized(CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR));
    knobs.back()->put(CUDNN_ATTR_KNOB_INFO_TYPE, CUDNN_TYPE_KNOB_TYPE, std::vector{knob.type});
    knobs.back()->put(CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE, CUDNN_TYPE_INT64, std::vector{knob.least});
    knobs.back()->put(CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE, CUDNN_TYPE_INT64, std::vector{knob.most});
    knobs.back()->put(CUDNN_ATTR_KNOB_INFO_STRIDE, CUDNN_TYPE_INT64, std::vector{knob.step});
  }
  d.put(CUDNN_ATTR_ENGINE_KNOB_INFO, std::move(knobs));
}

Body make_engine(Descriptor& d) {
  const auto graph = d.referred_to<Graph>(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  const Target target = target_of(d, CUDNN_ATTR_ENGINE_DEVICEPROP, *graph);
  const Engine& engine = engine_for(d.one<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX), *graph, target);
  fill_engine(d, engine);
  return std::make_shared<const Configuration>(
      Configuration{.graph = graph, .target = target, .engine = engine.index, .knobs = {}});
}

Body make_configuration(const Descriptor& d) {
  Configuration configuration = *d.referred_to<Configuration>(CUDNN_ATTR_ENGINECFG_ENGINE);
  if (d.has(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES)) {
    for (const auto& choice : d.referred(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES)) {
      const auto type = choice->one<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE);
      const auto value = choice->one<std::int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
      require(configuration.knobs.emplace(type, value).second, CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
              "a knob is set twice");
    }
  }
  algorithm_of(configuration);
  return std::make_shared<const Configuration>(std::move(configuration));
}

// The same descriptor that a caller could have created with the API.
std::shared_ptr<Descriptor> descriptor_of(const std::shared_ptr<const Configuration>& configuration) {
  auto engine = finalized(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  fill_engine(*engine, engine_for(configuration->engine, *configuration->graph, configuration->target));
  engine->body = std::make_shared<const Configuration>(Configuration{.graph = configuration->graph,
                                                                     .target = configuration->target,
                                                                     .engine = configuration->engine,
                                                                     .knobs = {}});
  std::vector<std::shared_ptr<Descriptor>> choices;
  for (const auto& [knob, value] : configuration->knobs) {
    choices.push_back(finalized(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR));
    choices.back()->put(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, std::vector{knob});
    choices.back()->put(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, std::vector{value});
  }
  auto made = finalized(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  made->put(CUDNN_ATTR_ENGINECFG_ENGINE, {std::move(engine)});
  made->put(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, std::move(choices));
  made->body = configuration;
  return made;
}

void find_results(Descriptor& d) {
  const auto graph = d.referred_to<Graph>(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  const auto mode = d.one<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE);
  require(mode >= CUDNN_HEUR_MODE_INSTANT && mode < CUDNN_HEUR_MODES_COUNT, CUDNN_STATUS_BAD_PARAM,
          "unknown heuristics mode");
  std::vector<std::shared_ptr<Descriptor>> results;
  for (const auto& configuration :
       propose(graph, target_of(d, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *graph), mode)) {
    results.push_back(descriptor_of(configuration));
  }
  d.put(CUDNN_ATTR_ENGINEHEUR_RESULTS, std::move(results));
}

std::atomic<std::uint64_t> built_plans{0};

const Plan* keep(const Plan& plan) {
  const Unseen unseen;
  ++built_plans;
  static auto& mutex = *new std::mutex;
  static auto& plans = *new std::deque<Plan>;
  const std::lock_guard lock(mutex);
  return &plans.emplace_back(plan);
}

Body make_plan(Descriptor& d) {
  const auto configuration = d.referred_to<Configuration>(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  Plan plan{.configuration = configuration, .device = -1, .workspace_bytes = workspace_bytes(*configuration)};
  if (d.has(CUDNN_ATTR_EXECUTION_PLAN_HANDLE)) {
    const auto handle = d.one<cudnnHandle_t>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
    require(handle != nullptr, CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the plan's handle is null");
    plan.device = handle->device;
  } else {
    require(d.has(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP), CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
            "a plan has neither a handle nor device properties");
    plan.device = d.referred_to<Target>(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP)->device;
  }
  check_plan(*configuration);
  d.put(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
        std::vector{static_cast<std::int64_t>(plan.workspace_bytes)});
  return keep(plan);
}

void check_pack(const Descriptor& d) {
  const auto ids = d.all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = d.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  require(ids.size() == pointers.size(), CUDNN_STATUS_BAD_PARAM, "the numbers of ids and pointers differ");
  require(std::set(ids.begin(), ids.end()).size() == ids.size(), CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
          "an id is given twice");
}

Body make_body(Descriptor& d) {
  switch (d.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      return make_tensor(d);
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
      return make_convolution(d);
    case CUDNN_BACKEND_POINTWISE_DESCRIPTOR:
      return make_pointwise(d);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
      return make_pointwise_operation(d);
    case CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR:
      return make_statistics_operation(d);
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      return make_reduction_operation(d);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      d.put(CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, CUDNN_TYPE_INT64,
            std::vector{engine_global_count()});
      return make_graph(d);
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
      return make_engine(d);
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
      return make_configuration(d);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      return make_plan(d);
    case CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR:
      return std::make_shared<const Target>(target_of_description(d));
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      find_results(d);
      return {};
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      check_pack(d);
      return {};
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      return make_convolution_operation(d);
    default:  // has no body, only attributes
      return {};
  }
}

}  // namespace

std::uint64_t plans_built() { return built_plans; }

void finalize(Descriptor& descriptor) {
  require(!descriptor.finalized, CUDNN_STATUS_BAD_PARAM, "the descriptor is already finalized");
  require_attributes(descriptor);
  descriptor.body = make_body(descriptor);
  descriptor.finalized = true;
}

}  // namespace lockstep::emulator::cudnn
