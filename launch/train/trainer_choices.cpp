// SPDX-License-Identifier: Apache-2.0
//
// Choices that a Trainer makes during training: the codec of each bucket, and the order of buckets.
#include <algorithm>

#include "core/error.h"
#include "launch/train/trainer.h"

namespace lockstep {

// Learns from steps that wait for their gradients, once codecs are decided.
void Trainer::learn_order() {
  if (!ledger_ || (codec_trial_ && !codecs_held_ && !codec_trial_->decided())) return;
  settle_all_but(0);
  end_->learn(*ledger_);
}

void Trainer::try_codecs(double step_seconds) {
  if (const auto by_bucket = codec_trial_->step_done(step_seconds, *ledger_)) change_codecs(*by_bucket);
}

void Trainer::choose_codecs(std::span<const int> by_bucket) {
  CHECK(codec_trial_, "choose_codecs() requires comm.codec = \"auto\"");
  codec_trial_->end();
  change_codecs(by_bucket);
}

// Discards recordings, because they use memory of the old codecs.
void Trainer::change_codecs(std::span<const int> by_bucket) {
  AutoExchange& exchange = *parts_.buckets.exchange().to_choose();
  if (std::ranges::equal(by_bucket, exchange.chosen())) return;
  settle_all_but(0);
  stream_.synchronize();
  recordings_.forget();
  exchange.choose(by_bucket);
  recordings_.restart(parts_.buckets.exchange().warmup_steps());
  clock_.restart();
  place_.exchange_changed = true;
}

}  // namespace lockstep
