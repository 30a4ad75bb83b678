// SPDX-License-Identifier: Apache-2.0
//
// The engines of the emulated cuDNN, and which of them it proposes for a graph. They sum in different orders,
// so their results differ in the last bits. Some have numerical or behaviour notes, and behave accordingly,
// so that tests can check a caller that filters by notes. One engine is proposed and then refused when its
// plan is finalized.
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
// The highest index plus one.
std::int64_t engine_global_count();
// Throws Refusal if no engine has this index, or if it does not support the graph on the device.
const Engine& engine_for(std::int64_t index, const Graph& graph, const Target& target);

// The number of partial sums of GENSTATS, which are stored in the workspace.
inline constexpr std::int64_t kStatisticsParts = 4;

// The computation of an engine with the values of its knobs.
struct Algorithm {
  std::int64_t block = 128;  // terms per block of a sum, see multiply.h
  std::int64_t split = 1;    // partial sums, stored in the workspace
  bool windows_in_workspace = false;
  bool tensor_cores = false;  // rounds fp32 operands to tf32
  bool halves = false;        // rounds fp32 operands to fp16
  bool any_order = false;     // adds the partial sums in an order that changes from run to run
};
// Throws Refusal for a knob that the engine does not have or a value outside the knob's range.
Algorithm algorithm_of(const Configuration& configuration);
std::size_t workspace_bytes(const Configuration& configuration);

// The configuration that is expected to be fastest comes first. Throws Refusal if no engine supports the
// graph.
std::vector<std::shared_ptr<const Configuration>> propose(const std::shared_ptr<const Graph>& graph,
                                                          const Target& target, cudnnBackendHeurMode_t mode);
// Throw Refusal if the configuration's plan cannot be built, or cannot be executed. Each also fails for a
// share of all configurations that the machine's seed selects (LOCKSTEP_EMULATED_PLAN_FAILURES).
void check_plan(const Configuration& configuration);
void check_execution(const Configuration& configuration);

}  // namespace lockstep::emulator::cudnn
