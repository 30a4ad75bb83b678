// SPDX-License-Identifier: Apache-2.0
//
// The state of a Trainer that is saved and restored.
#include <limits>

#include "core/error.h"
#include "launch/train/trainer.h"

namespace lockstep {

void Trainer::visit_state(StateVisitor& visitor) {
  settle_all_but(0);
  clock_.restart();
  if (visitor.writes())
    end_->keep_own_parameters();
  else
    share_state(StateUse::checkpoint);
  parts_.network.visit_state(visitor);
  parts_.optimizer.visit_state(visitor);
  if (average_) average_->visit_state(visitor);
  visit_exchange(visitor);
  end_->visit_state(visitor);
  visit_position(visitor);
  const StateScope judged = end_->traits().judges_alone ? StateScope::per_rank : StateScope::replicated;
  constexpr const char* kBadSteps = "train.bad_steps_in_a_row";
  // States of earlier versions lack it, and those of another number of ranks that each judge their own steps.
  if (visitor.has_value(kBadSteps, judged))
    visitor.value(kBadSteps, judged, &settled_.bad_in_a_row);
  else
    settled_.bad_in_a_row = 0;
  visitor.value("epoch.loss", StateScope::per_rank, &settled_.losses.loss);
  visitor.value("epoch.weight", StateScope::per_rank, &settled_.losses.weight);
  visitor.value("epoch.correct", StateScope::per_rank, &settled_.losses.correct);
  visitor.value("epoch.samples", StateScope::per_rank, &settled_.losses.samples);
  visitor.value("epoch.skipped_steps", judged, &settled_.skipped);
  if (!visitor.writes()) return;
  position_.restored = position_.enqueued;
  place_.exchange_changed = true;
  settled_.loss_scale = parts_.optimizer.read_control(stream_).loss_scale;
  settled_.epoch_begin = -1;  // the restored sums are not reset
  train_.seek(position_.epoch, position_.epoch_step);
  const std::int64_t in_data =
      parts_.train.steps_before(position_.epoch, parts_.train.global_batch()) + position_.epoch_step;
  schedule_lead_ = schedule_.place(position_.step, in_data) - position_.step;
}

void Trainer::visit_codecs(StateVisitor& visitor) {
  if (!codec_trial_) return;
  const auto by_bucket =
      codec_trial_->visit_state(visitor, parts_.network.parameters(), parts_.buckets.plan());
  if (by_bucket) change_codecs(*by_bucket);
}

void Trainer::visit_exchange(StateVisitor& visitor) {
  visit_codecs(visitor);
  for (const ExchangeState& state : parts_.buckets.exchange().state())
    visitor.tensor(state.tensor(), state.scope);
}

void Trainer::visit_position(StateVisitor& visitor) {
  const auto mine = static_cast<std::int64_t>(parts_.train.options().seed);
  std::int64_t seed = mine;
  visitor.value("train.seed", StateScope::replicated, &seed);
  visitor.value("train.steps", StateScope::replicated, &position_.step);
  visitor.value("train.epoch", StateScope::replicated, &position_.epoch);
  visitor.value("train.epoch_step", StateScope::replicated, &position_.epoch_step);
  visitor.value("train.epoch_reported", StateScope::replicated, &position_.reported);
  if (seed != mine) {
    throw ConfigError(
        fmt::format("the saved state has train.seed = {}, this training has train.seed = {}", seed, mine));
  }
  constexpr std::int64_t kMostEpochs = std::numeric_limits<decltype(SampleId::epoch)>::max();
  if (position_.epoch < 0 || position_.epoch > kMostEpochs || position_.epoch_step < 0 ||
      position_.epoch_step > parts_.train.steps_in_epoch(position_.epoch) || position_.step < 0) {
    throw DataError(
        fmt::format("the saved state has an impossible position: step {} of epoch {} after {} steps in all",
                    position_.epoch_step, position_.epoch + 1, position_.step));
  }
}

}  // namespace lockstep
