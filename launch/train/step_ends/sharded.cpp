// SPDX-License-Identifier: Apache-2.0
#include "launch/train/step_ends/sharded.h"

namespace lockstep {

// No rank has all gradients, so none has their norm.
StepPlan ShardedEnd::begin_step(const StepPlace& place) {
  StepPlan plan = StepEnd::begin_step(place);
  plan.has_norm = false;
  return plan;
}

// A skipped step sends the unchanged parameters, because the host does not know that it is skipped.
void ShardedEnd::run_optimizer(const StepPlace& place) {
  Stream& stream = parts_.stream;
  float* const values = parts_.network.values().data();
  parts_.optimizer.step(stream, place.slot,
                        [&](std::size_t range) { parts_.buckets.send_values(stream, values, range); });
  parts_.clock.wait_within([&] { parts_.buckets.wait_for_values(stream); });
  parts_.network.copy_trained_weights(stream);
}

}  // namespace lockstep
