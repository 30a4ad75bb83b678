// SPDX-License-Identifier: Apache-2.0
#include "launch/train/step_ends/crossing.h"

#include "core/error.h"

namespace lockstep {

CrossingEnd::CrossingEnd(const StepEndParts& parts)
    : SynchronousEnd(parts),
      barrier_(parts.network, parts.buckets, parts.optimizer, parts.clock, parts.results) {
  CHECK(parts.statistics == nullptr, "statistics that all ranks wait for cross no step");
}

void CrossingEnd::behind_backward(const StepPlace& place) {
  if (barrier_.learns() || place.stops_behind) return SynchronousEnd::behind_backward(place);
  const std::int64_t last = parts_.last_micro_batch;
  parts_.clock.time(Phase::exposed_communication, last, [] {});
  barrier_.leave(parts_.stream, place.slot);
  parts_.clock.time(Phase::optimizer, last, [] {});
}

void CrossingEnd::end_step(const StepPlace& place) {
  if (barrier_.gate() == nullptr) SynchronousEnd::end_step(place);
}

}  // namespace lockstep
