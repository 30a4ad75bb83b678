// SPDX-License-Identifier: Apache-2.0
#include "launch/train/step_ends/ring.h"

namespace lockstep {

RingEnd::RingEnd(const StepEndParts& parts)
    : ApartEnd(parts, {.every = LocalSgdOptions::kNever}), gossip_(parts.network, parts.communicator) {}

void RingEnd::after_backward(const StepPlace& place) {
  const std::int64_t last = parts_.last_micro_batch;
  parts_.clock.time(Phase::optimizer, last, [&] { apply_gradients(place); });
  parts_.clock.time(Phase::exposed_communication, last, [&] { gossip_.average(parts_.stream); });
}

// The evaluated average becomes the last average, although each rank continues with its own parameters.
std::optional<StepFailure> RingEnd::share_state(StateUse use, std::int64_t steps) {
  const std::optional<StepFailure> failure = ApartEnd::share_state(use, steps);
  if (use == StateUse::evaluation && !failure) local().remember_average(parts_.stream);
  return failure;
}

}  // namespace lockstep
