// SPDX-License-Identifier: Apache-2.0
#include "launch/train/step_ends/apart.h"

#include "comm/agreement.h"
#include "core/error.h"

namespace lockstep {

ApartEnd::ApartEnd(const StepEndParts& parts, const LocalSgdOptions& options)
    : SynchronousEnd(parts), local_(parts.network, parts.buckets, parts.communicator, options) {
  CHECK(parts.statistics == nullptr, "ranks that train apart ask each other for statistics");
  parts.optimizer.set_state_scope(StateScope::per_rank);
}

// On a GPU, the account of an averaging step counts the optimizer as exposed communication, because that
// phase ends before the optimizer in all other steps.
void ApartEnd::behind_backward(const StepPlace& place) {
  const StepKind kind = kind_of(place.step);
  if (kind == StepKind::synchronous) return SynchronousEnd::behind_backward(place);
  StepClock& clock = parts_.clock;
  const std::int64_t last = parts_.last_micro_batch;
  if (kind == StepKind::local) clock.time(Phase::exposed_communication, last, [] {});
  clock.time(Phase::optimizer, last, [&] { take_gradients(place); });
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

// step: after which ranks have met.
std::optional<StepFailure> ApartEnd::failure_of_a_rank(std::int64_t step, bool average_is_finite) {
  if (first_rank_where(parts_.communicator.host(), failed_.step > 0) < 0 && average_is_finite)
    return std::nullopt;
  return StepFailure{.step = step, .loss_finite = failed_.loss_finite};
}

std::optional<StepFailure> ApartEnd::show_evaluated(std::int64_t steps) {
  if (local_.apart_before(steps)) {
    if (const auto failure = failure_of_a_rank(steps, true)) return failure;
  }
  local_.show_average(parts_.stream, steps);
  return std::nullopt;
}

void ApartEnd::show_saved(std::int64_t steps) {
  local_.show_average(parts_.stream, steps);
  parts_.stream.synchronize();
}

bool ApartEnd::show_last_average(std::int64_t step) {
  if (kind_of(step - 1) == StepKind::synchronous) return false;
  local_.show_last_average(parts_.stream);
  return true;
}

void ApartEnd::visit_state(StateVisitor& visitor) { local_.visit_state(visitor, parts_.stream); }

}  // namespace lockstep
