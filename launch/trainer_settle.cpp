// SPDX-License-Identifier: Apache-2.0
//
// What a Trainer learns of the steps that are over, and how it ends a training whose loss is not finite.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"
#include "launch/trainer.h"
#include "models/network_state.h"

namespace lockstep {
namespace {

// A loss scale so small that fp16 has no more room above than fp32 has: overflow is not its fault.
constexpr float kLeastLossScale = 0x1p-10f;

}  // namespace

void Trainer::settle_but(std::int64_t lag) {
  if (lag == 0) end_->finish();
  while (enqueued_ - settled_ > lag) settle(StepSlot::of(settled_));
}

void Trainer::settle(StepSlot slot) {
  const StepResult result = results_.result(slot);
  clock_.settle(slot);
  const float scale_before = std::exchange(loss_scale_, result.control.loss_scale);
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
  const bool fatal = skipped && (!dynamic || loss_scale_ < kLeastLossScale);
  if (const auto failure = end_->failure(verdict, fatal, slot)) stop_not_finite(*failure);
}

void Trainer::stop_not_finite(const StepFailure& failure) {
  end_->finish();  // of the step after it, which is skipped, too
  Communicator& communicator = parts_.communicator.host();
  const std::vector<std::int32_t> flags =
      gather_values<std::int32_t>(communicator, failure.loss_finite ? 0 : 1);
  std::vector<int> ranks;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    if (flags[static_cast<std::size_t>(rank)] != 0) ranks.push_back(rank);
  }
  const std::string saved = save_last_good(failure.step);
  const std::string what = ranks.empty()
                               ? "the gradient is not finite (every rank's loss is)"
                               : fmt::format("the loss is not finite on rank {}", fmt::join(ranks, ", "));
  throw_agreed(
      Error(exit_code::failed, fmt::format("step {}: {}; lower optimizer.learning_rate or look at the data{}",
                                           failure.step, what, saved)));
}

// A GPU is at the next step already, which changes statistics and takes them back where it is skipped, too.
std::string Trainer::save_last_good(std::int64_t failed_step) {
  if (options_.last_good.empty()) return "";
  const bool average = end_->show_last_average(failed_step);
  const bool done =
      settled_ < enqueued_ && results_.result(StepSlot::of(settled_)).control.finite != 0;  // the next
  average_statistics();
  stream_.synchronize();
  if (parts_.communicator.rank() == 0) StateSnapshot(parts_.network).save(options_.last_good);
  if (average) return fmt::format("; the last average of all ranks is in {}", options_.last_good.string());
  return fmt::format("; the state {} is in {}",
                     done ? fmt::format("after step {}", failed_step + 1) : "before this step",
                     options_.last_good.string());
}

// Of steps that every rank judges alone, those of all ranks.
std::int64_t Trainer::skipped_on_all_ranks() {
  if (!end_->judges_alone()) return skipped_;
  const std::vector<std::int64_t> skipped = gather_values(parts_.communicator.host(), skipped_);
  return std::accumulate(skipped.begin(), skipped.end(), std::int64_t{0});
}

}  // namespace lockstep
