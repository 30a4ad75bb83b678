// SPDX-License-Identifier: Apache-2.0
#include "launch/train/step_ends/crossing.h"

namespace lockstep {

CrossingEnd::CrossingEnd(const StepEndParts& parts)
    : SynchronousEnd(parts, {.crosses = true}),
      barrier_(parts.network, parts.buckets, parts.optimizer, parts.clock, parts.results) {}

StepPlan CrossingEnd::begin_step(const StepPlace& place) {
  if (place.exchange_changed) barrier_.learn_again();
  return {.has_norm = false, .learns = barrier_.learns(), .gate = barrier_.gate()};
}

void CrossingEnd::after_backward(const StepPlace& place) {
  if (barrier_.learns() || place.before_pause) return SynchronousEnd::after_backward(place);
  const std::int64_t last = parts_.last_micro_batch;
  parts_.clock.time(Phase::exposed_communication, last, [] {});
  barrier_.defer(parts_.stream, place.slot);
  parts_.clock.time(Phase::optimizer, last, [] {});
}

void CrossingEnd::end_step(const StepPlace& place) {
  if (barrier_.gate() == nullptr) SynchronousEnd::end_step(place);
}

}  // namespace lockstep
