// SPDX-License-Identifier: Apache-2.0
//
// How a Trainer reads the results of completed steps.
#include <numeric>
#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "core/log.h"
#include "launch/trainer.h"

namespace lockstep {

void Trainer::settle_but(std::int64_t lag) {
  if (lag == 0) end_->finish();
  while (enqueued_ - settled_ > lag) settle(StepSlot::of(settled_));
}

void Trainer::settle(StepSlot slot) {
  const StepResult result = results_.result(slot);
  marks_.ended(slot);
  clock_.settle(slot);
  const float scale_before = std::exchange(loss_scale_, result.control.loss_scale);
  gradients_scale_ = scale_before;
  gradient_norm_ = gradient_norm(result, scale_before);
  const StepVerdict verdict = end_->judge(step_ - enqueued_ + settled_ + 1, result, scale_before);
  if (settled_++ == epoch_began_) begin_totals();
  if (verdict.counts) {
    for (const LossSums& sums : result.losses) totals_.add(sums);
  }
  const bool skipped = result.control.finite == 0;
  const bool dynamic = parts_.optimizer.loss_scale_options().dynamic();
  if (skipped && dynamic) {
    ++skipped_;
    if (parts_.communicator.rank() == 0 || end_->kind_of(verdict.step - 1) != StepKind::synchronous) {
      log::info("step {} skipped: its gradients overflow at a loss scale of {}, now it is {}", verdict.step,
                verdict.loss_scale, loss_scale_);
    }
  }
  // At the smallest loss scale, the scale is not the cause.
  const bool bad = skipped && (!dynamic || scale_before <= parts_.optimizer.loss_scale_options().rule.least);
  if (bad || !skipped) bad_in_a_row_ = bad ? bad_in_a_row_ + 1 : 0;
  const bool fatal = bad && bad_in_a_row_ > options_.max_skipped_steps;
  if (bad && !fatal && !dynamic) ++skipped_;
  if (bad && !fatal) tell_skipped(verdict);
  if (fatal && began_.empty()) began_ = find_not_finite(verdict.step);
  if (const auto failure = end_->failure(verdict, fatal, slot)) stop_not_finite(*failure);
}

// The sum over ranks if each rank judges its own steps.
std::int64_t Trainer::skipped_on_all_ranks() {
  if (!end_->judges_alone()) return skipped_;
  const std::vector<std::int64_t> skipped = gather_values(parts_.communicator.host(), skipped_);
  return std::accumulate(skipped.begin(), skipped.end(), std::int64_t{0});
}

}  // namespace lockstep
