// SPDX-License-Identifier: Apache-2.0
#include "launch/train/step_ends/late.h"

#include <utility>

#include "comm/agreement.h"

namespace lockstep {

LateEnd::LateEnd(const StepEndParts& parts)
    : StepEnd(parts, {.keeps_gradients = false, .first_exchange = 1}),
      delayed_(parts.network, parts.buckets, parts.optimizer, parts.communicator.size()) {}

// With a dynamic loss scale, two scales alternate: the norm is not computed.
StepPlan LateEnd::begin_step(const StepPlace&) {
  const bool under_way = delayed_.under_way();
  return {.exchanges = under_way,
          .sends_during_backward = false,
          .has_norm = under_way && !parts_.optimizer.loss_scale_options().dynamic()};
}

void LateEnd::before_forward(const StepPlace& place) {
  StepEnd::before_forward(place);
  if (!delayed_.under_way()) return;
  delayed_.exchange(parts_.stream, parts_.clock.buckets());
  parts_.clock.time(Phase::optimizer, 0, [&] { delayed_.look_ahead(parts_.stream, place.slot); });
}

void LateEnd::after_backward(const StepPlace& place) {
  Stream& stream = parts_.stream;
  const std::int64_t last = parts_.last_micro_batch;
  const bool under_way = delayed_.under_way();
  parts_.clock.time(Phase::exposed_communication, last, [&] {
    if (!under_way) return;
    parts_.buckets.wait(stream);
    parts_.recordings.check_calls();
  });
  parts_.clock.time(Phase::optimizer, last, [&] {
    delayed_.judge_statistics(stream);
    if (under_way) {
      delayed_.restore_parameters(stream);
      delayed_.use_late_scale(stream);
      update(place);
    }
    parts_.results.copy_control(stream, place.slot, parts_.optimizer.control());
    if (under_way) delayed_.keep_new_scale(stream);
    delayed_.keep(stream);
  });
}

void LateEnd::end_step(const StepPlace& place) {
  delayed_.end_step();
  StepEnd::end_step(place);
}

std::optional<StepFailure> LateEnd::share_state(StateUse use, std::int64_t steps) {
  const bool may_skip =
      parts_.optimizer.loss_scale_options().dynamic() || parts_.optimizer.judges_each_step();
  if (use != StateUse::checkpoint || may_skip) return std::nullopt;
  const bool bad = !delayed_.are_finite(parts_.stream);
  if (first_rank_where(parts_.communicator.host(), bad) < 0) return std::nullopt;
  return StepFailure{.step = steps, .loss_finite = loss_was_finite_};
}

void LateEnd::visit_state(StateVisitor& visitor) {
  delayed_.visit_state(visitor, parts_.stream);
  if (!visitor.writes()) return;
  waiting_scale_.reset();
  if (delayed_.under_way()) waiting_scale_ = delayed_.read_scale(parts_.stream);
}

// Two loss scales alternate: scale_before is the other one.
StepVerdict LateEnd::judge(std::int64_t number, const StepResult& result, float scale_before) {
  const bool now_finite = losses_are_finite(result);
  return {.step = number - 1,
          .loss_finite = std::exchange(loss_was_finite_, now_finite),
          .counts = now_finite,
          .loss_scale = std::exchange(waiting_scale_, scale_before).value_or(scale_before)};
}

}  // namespace lockstep
