// SPDX-License-Identifier: Apache-2.0
#include "launch/train/step_ends/apart.h"

#include "comm/agreement.h"

namespace lockstep {

ApartEnd::ApartEnd(const StepEndParts& parts, const LocalSgdOptions& options)
    : SynchronousEnd(parts, {.judges_alone = true, .kinds = options}),
      local_(parts.network, parts.buckets, parts.communicator, options) {
  parts.optimizer.set_state_scope(StateScope::per_rank);
}

StepPlan ApartEnd::begin_step(const StepPlace& place) {
  local_.begin_step(parts_.stream, place.step);
  return StepEnd::begin_step(place);
}

// On a GPU, the account of an averaging step counts the optimizer as exposed communication, because that
// phase ends before the optimizer in all other steps.
void ApartEnd::after_backward(const StepPlace& place) {
  const StepKind kind = kind_of(place.step);
  if (kind == StepKind::synchronous) return SynchronousEnd::after_backward(place);
  StepClock& clock = parts_.clock;
  const std::int64_t last = parts_.last_micro_batch;
  if (kind == StepKind::local) clock.time(Phase::exposed_communication, last, [] {});
  clock.time(Phase::optimizer, last, [&] { apply_gradients(place); });
  if (kind == StepKind::local) return;
  clock.time(Phase::exposed_communication, last, [&] {
    local_.average(parts_.stream, place.slot, clock.buckets());
    parts_.recordings.check_calls();
  });
}

std::optional<StepFailure> ApartEnd::failure(const StepVerdict& verdict, bool fatal, StepSlot slot) {
  const StepKind kind = kind_of(verdict.step - 1);
  if (kind == StepKind::synchronous) return StepEnd::failure(verdict, fatal, slot);
  if (fatal && failed_.step == 0) failed_ = {.step = verdict.step, .loss_finite = verdict.loss_finite};
  if (kind == StepKind::local) return std::nullopt;
  return failure_of_a_rank(verdict.step, local_.averaged(slot));
}

// step: the last one, after which ranks wait for each other.
std::optional<StepFailure> ApartEnd::failure_of_a_rank(std::int64_t step, bool average_is_finite) {
  if (first_rank_where(parts_.communicator.host(), failed_.step > 0) < 0 && average_is_finite)
    return std::nullopt;
  return StepFailure{.step = step, .loss_finite = failed_.loss_finite};
}

std::optional<StepFailure> ApartEnd::share_state(StateUse use, std::int64_t steps) {
  if (use == StateUse::last_good) {
    local_.show_last_average(parts_.stream);
    return std::nullopt;
  }
  if (local_.apart_before(steps)) {
    if (const auto failure = failure_of_a_rank(steps, true)) return failure;
  }
  local_.show_average(parts_.stream, steps);
  if (use == StateUse::checkpoint) parts_.stream.synchronize();
  return std::nullopt;
}

}  // namespace lockstep
