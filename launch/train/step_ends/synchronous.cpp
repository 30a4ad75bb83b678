// SPDX-License-Identifier: Apache-2.0
#include "launch/train/step_ends/synchronous.h"

namespace lockstep {

void SynchronousEnd::after_backward(const StepPlace& place) {
  const std::int64_t last = parts_.last_micro_batch;
  parts_.clock.time(Phase::exposed_communication, last, [&] {
    parts_.buckets.wait(parts_.stream);
    if (parts_.statistics != nullptr) parts_.statistics->finish(parts_.stream);
    parts_.recordings.check_calls();
  });
  parts_.clock.time(Phase::optimizer, last, [&] { apply_gradients(place); });
}

void SynchronousEnd::apply_gradients(const StepPlace& place) {
  update(place);
  parts_.network.restore_statistics_if_skipped(parts_.stream, parts_.optimizer.control());
  parts_.results.copy_control(parts_.stream, place.slot, parts_.optimizer.control());
}

}  // namespace lockstep
