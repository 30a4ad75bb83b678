// SPDX-License-Identifier: Apache-2.0
#include "launch/train/step_ends/sharded.h"

namespace lockstep {

// No rank has all gradients, so none has their norm.
StepPlan ShardedEnd::begin_step(const StepPlace& place) {
  StepPlan plan = StepEnd::begin_step(place);
  plan.has_norm = false;
  return plan;
}

// A skipped step must not spread a value that memory damaged on its owner. On a GPU the host does not know
// that a step is skipped, so the unchanged parameters are sent.
void ShardedEnd::run_optimizer(const StepPlace& place) {
  Stream& stream = parts_.stream;
  float* const values = parts_.network.values().data();
  const std::int32_t& finite = parts_.optimizer.control()->finite;  // the same on all ranks
  parts_.optimizer.step(stream, place.slot, [&](std::size_t range) {
    if (!stream.runs_on_host() || finite != 0) parts_.buckets.send_values(stream, values, range);
  });
  parts_.clock.wait_within([&] { parts_.buckets.wait_for_values(stream); });
  parts_.network.copy_trained_weights(stream);
}

}  // namespace lockstep
