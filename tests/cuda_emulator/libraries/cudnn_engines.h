// SPDX-License-Identifier: Apache-2.0
//
// The engines that the emulated cuDNN has, and which of them it proposes for a graph. They sum in different
// orders, so that each gives its own last bits; some carry notes that a careful caller filters by and mean
// what they say; one is proposed and then refused when a plan is finalized.
#pragma once

#include <vector>

#include "tests/cuda_emulator/libraries/cudnn_graph_parts.h"

namespace lockstep::emulator::cudnn {

struct Knob {
  cudnnBackendKnobType_t type;
  std::int64_t least, most, step, otherwise;
};

struct Engine {
  std::int64_t index;
  std::vector<cudnnBackendNumericalNote_t> numerical_notes;
  std::vector<cudnnBackendBehaviorNote_t> behavior_notes;
  std::vector<Knob> knobs;

  bool notes(cudnnBackendNumericalNote_t note) const;
  bool notes(cudnnBackendBehaviorNote_t note) const;
};
const std::vector<Engine>& engines();
// One more than the highest index.
std::int64_t engine_global_count();
// Throws Refusal when there is none, or when it does not do the graph on the device.
const Engine& engine_for(std::int64_t index, const Graph& graph, const Target& target);

// Parts of the sums of GENSTATS, kept in the workspace.
inline constexpr std::int64_t kStatisticsParts = 4;

// How an engine with its knobs computes.
struct Algorithm {
  std::int64_t block = 128;  // of a sum, see multiply.h
  std::int64_t split = 1;    // parts of a sum, kept in the workspace
  bool windows_in_workspace = false;
  bool tensor_cores = false;  // rounds fp32 operands to tf32
  bool halves = false;        // rounds fp32 operands to fp16
  bool any_order = false;     // sums parts in an order that changes from run to run
};
// Throws Refusal for knobs that the engine does not have or values that they do not take.
Algorithm algorithm_of(const Configuration& configuration);
std::size_t workspace_bytes(const Configuration& configuration);

// Best guess first. Throws Refusal when nothing does the graph.
std::vector<std::shared_ptr<const Configuration>> propose(const std::shared_ptr<const Graph>& graph,
                                                          const Target& target, cudnnBackendHeurMode_t mode);
// Throws Refusal when a plan cannot be had of the configuration after all, or cannot be executed. Each
// refuses a share of all configurations that the machine's seed chooses (LOCKSTEP_EMULATED_PLAN_FAILURES).
void check_plan(const Configuration& configuration);
void check_execution(const Configuration& configuration);

}  // namespace lockstep::emulator::cudnn
