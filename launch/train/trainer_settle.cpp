// SPDX-License-Identifier: Apache-2.0
//
// How a Trainer reads the results of completed steps.
#include <numeric>
#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "core/log.h"
#include "launch/train/trainer.h"

namespace lockstep {

void Trainer::settle_all_but(std::int64_t lag) {
  if (lag == 0) end_->finish();
  while (position_.enqueued - settled_.steps > lag) settle(StepSlot::of(settled_.steps));
}

void Trainer::settle(StepSlot slot) {
  const StepResult result = results_.result(slot);
  marks_.ended(slot);
  clock_.settle(slot);
  const float scale_before = std::exchange(settled_.loss_scale, result.control.loss_scale);
  settled_.gradients_scale = scale_before;
  settled_.gradient_norm = gradient_norm(result, scale_before);
  const StepVerdict verdict =
      end_->judge(position_.step - position_.enqueued + settled_.steps + 1, result, scale_before);
  if (settled_.steps++ == settled_.epoch_begin) begin_sums();
  if (verdict.counts) {
    for (const LossSums& sums : result.losses) settled_.losses.add(sums);
  }
  const bool skipped = result.control.finite == 0;
  const bool dynamic = parts_.optimizer.loss_scale_options().dynamic();
  // All ranks skip the same synchronous steps: rank 0 reports them, and counts them where counts are summed.
  const bool reports =
      parts_.communicator.rank() == 0 || end_->kind_of(verdict.step - 1) != StepKind::synchronous;
  const bool counts = reports || !end_->traits().judges_alone;
  if (skipped && dynamic) {
    if (counts) ++settled_.skipped;
    if (reports) {
      log::info("step {} skipped: its gradients overflow at a loss scale of {}; the scale is now {}",
                verdict.step, verdict.loss_scale, settled_.loss_scale);
    }
  }
  // At the smallest loss scale, the scale is not the cause.
  const bool bad =
      skipped && (!dynamic || verdict.loss_scale <= parts_.optimizer.loss_scale_options().rule.least);
  if (bad || !skipped) settled_.bad_in_a_row = bad ? settled_.bad_in_a_row + 1 : 0;
  const bool fatal = bad && settled_.bad_in_a_row > options_.max_skipped_steps;
  if (bad && !fatal && !dynamic && counts) ++settled_.skipped;
  if (bad && !fatal) report_skipped(verdict);
  if (fatal && settled_.not_finite_origin.empty()) settled_.not_finite_origin = find_not_finite(verdict.step);
  if (const auto failure = end_->failure(verdict, fatal, slot)) stop_not_finite(*failure);
}

// The sum over ranks if each rank judges its own steps.
std::int64_t Trainer::skipped_on_all_ranks() {
  if (!end_->traits().judges_alone) return settled_.skipped;
  const std::vector<std::int64_t> skipped = gather_values(parts_.communicator.host(), settled_.skipped);
  return std::accumulate(skipped.begin(), skipped.end(), std::int64_t{0});
}

}  // namespace lockstep
