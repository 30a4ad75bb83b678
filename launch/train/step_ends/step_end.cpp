// SPDX-License-Identifier: Apache-2.0
#include "launch/train/step_ends/step_end.h"

namespace lockstep {

StepPlan StepEnd::begin_step(const StepPlace& place) {
  const StepKind kind = kind_of(place.step);
  return {.exchanges = kind != StepKind::local, .sends_during_backward = kind == StepKind::synchronous};
}

// Judges the exchanged gradients. Sums have the same bits on every rank, so all ranks decide alike without
// communication; with an exchange whose results differ by rank, they agree. A loss that is not finite on one
// rank makes its gradients, and so the sum, not finite.
void StepEnd::update(const StepPlace& place) {
  Optimizer& optimizer = parts_.optimizer;
  optimizer.check_gradients(parts_.stream);
  const bool reads_norm = parts_.results.norm_asked(place.slot), clips = parts_.clip_norm > 0;
  double* squares = parts_.results.gradient_squares();
  if (reads_norm || clips) optimizer.sum_gradient_squares(parts_.stream, squares);
  if (reads_norm) parts_.results.copy_gradient_squares(parts_.stream, place.slot);
  if (clips) optimizer.clip_gradients(parts_.stream, squares, parts_.clip_norm);
  if (kind_of(place.step) == StepKind::synchronous)
    parts_.buckets.agree_finite(parts_.stream, &optimizer.control()->finite);
  run_optimizer(place);
  if (parts_.average != nullptr) parts_.average->update(parts_.stream, optimizer.control());
}

StepVerdict StepEnd::judge(std::int64_t number, const StepResult& result, float scale_before) {
  return {.step = number,
          .loss_finite = losses_are_finite(result),
          .counts = result.control.finite != 0,
          .loss_scale = scale_before};
}

std::optional<StepFailure> StepEnd::failure(const StepVerdict& verdict, bool fatal, StepSlot) {
  if (!fatal) return std::nullopt;
  return StepFailure{.step = verdict.step, .loss_finite = verdict.loss_finite};
}

}  // namespace lockstep
