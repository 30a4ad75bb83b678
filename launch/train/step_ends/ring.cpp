// SPDX-License-Identifier: Apache-2.0
#include "launch/train/step_ends/ring.h"

namespace lockstep {

RingEnd::RingEnd(const StepEndParts& parts)
    : ApartEnd(parts, {.every = LocalSgdOptions::kNever}), gossip_(parts.network, parts.communicator) {}

void RingEnd::begin_epoch(std::int64_t first, std::int64_t end) { gossip_.begin_epoch(first, end - first); }

// The step's number is the number of steps that all ranks have taken before it, divided by the number of
// ranks: the schedule follows the samples trained on, not the fastest rank.
std::optional<std::int64_t> RingEnd::next_step(std::int64_t, std::int64_t) {
  if (!gossip_.take_step()) return std::nullopt;
  return gossip_.place();
}

std::vector<std::int64_t> RingEnd::end_epoch() {
  parts_.communicator.barrier();
  parts_.communicator.stream().synchronize();
  return gossip_.end_epoch();
}

void RingEnd::behind_backward(const StepPlace& place) {
  const std::int64_t last = parts_.last_micro_batch;
  parts_.clock.time(Phase::optimizer, last, [&] { take_gradients(place); });
  parts_.clock.time(Phase::exposed_communication, last, [&] { gossip_.average(parts_.stream); });
}

// The evaluated average becomes the last average, although each rank continues with its own parameters.
std::optional<StepFailure> RingEnd::show_evaluated(std::int64_t steps) {
  const std::optional<StepFailure> failure = ApartEnd::show_evaluated(steps);
  if (!failure) local().remember_average(parts_.stream);
  return failure;
}

}  // namespace lockstep
