// SPDX-License-Identifier: Apache-2.0
//
// What a Trainer learns of the steps that are over, and how it ends a training whose loss is not finite.
#include <algorithm>
#include <cmath>
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

bool losses_are_finite(const StepResult& result) {
  return std::ranges::all_of(result.losses, [](const LossSums& sums) { return std::isfinite(sums.loss); });
}

}  // namespace

void Trainer::settle_but(std::int64_t lag) {
  if (barrier_ && lag == 0) barrier_->finish();
  while (enqueued_ - settled_ > lag) settle(StepSlot::of(settled_));
}

void Trainer::settle(StepSlot slot) {
  const StepResult result = results_.result(slot);
  clock_.settle(slot);
  const std::int64_t late = delayed_ ? 1 : 0;
  const std::int64_t number = step_ - enqueued_ + settled_ + 1 - late;  // whose gradients were judged
  const float scale_before = std::exchange(loss_scale_, result.control.loss_scale);
  if (settled_++ == epoch_began_) begin_totals();
  const StepKind kind = kind_of(number - 1);
  const bool dynamic = parts_.optimizer.loss_scale_options().dynamic();
  const bool now_finite = losses_are_finite(result);
  const bool loss_finite = delayed_ ? std::exchange(loss_was_finite_, now_finite) : now_finite;
  if (delayed_ ? now_finite : result.control.finite != 0) {
    for (const LossSums& sums : result.losses) totals_.add(sums);
  }
  if (result.control.finite == 0 && dynamic) {
    ++skipped_;
    if (parts_.communicator.rank() == 0 || kind != StepKind::synchronous) {
      log::info("step {} skipped: its gradients overflow at a loss scale of {}, now it is {}", number,
                delayed_ ? loss_scale_ / parts_.optimizer.loss_scale_options().rule.backoff : scale_before,
                loss_scale_);
    }
  }
  if (result.control.finite == 0 && (!dynamic || loss_scale_ < kLeastLossScale)) {
    if (kind == StepKind::synchronous) stop_not_finite(loss_finite, number);
    if (failure_.step == 0) failure_ = {.step = number, .loss_finite = loss_finite};
  }
  if (kind == StepKind::averaging) stop_if_a_rank_failed(number, local_->averaged(slot));
}

void Trainer::stop_if_a_rank_failed(std::int64_t number, bool average_is_finite) {
  if (first_rank_where(parts_.communicator.host(), failure_.step > 0) < 0 && average_is_finite) return;
  stop_not_finite(failure_.loss_finite, number);
}

void Trainer::stop_not_finite(bool loss_finite, std::int64_t number) {
  if (barrier_) barrier_->finish();  // of the step after it, which is skipped, too
  Communicator& communicator = parts_.communicator.host();
  const std::vector<std::int32_t> flags = gather_values<std::int32_t>(communicator, loss_finite ? 0 : 1);
  std::vector<int> ranks;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    if (flags[static_cast<std::size_t>(rank)] != 0) ranks.push_back(rank);
  }
  const std::string saved = save_last_good(number);
  const std::string what = ranks.empty()
                               ? "the gradient is not finite (every rank's loss is)"
                               : fmt::format("the loss is not finite on rank {}", fmt::join(ranks, ", "));
  throw_agreed(Error(
      exit_code::failed,
      fmt::format("step {}: {}; lower optimizer.learning_rate or look at the data{}", number, what, saved)));
}

// A GPU is at the next step already, which changes statistics and takes them back where it is skipped, too.
std::string Trainer::save_last_good(std::int64_t failed_step) {
  if (options_.last_good.empty()) return "";
  const bool apart = kind_of(failed_step - 1) != StepKind::synchronous;
  if (apart) local_->show_last_average(stream_);
  const bool done =
      settled_ < enqueued_ && results_.result(StepSlot::of(settled_)).control.finite != 0;  // the next
  average_statistics();
  stream_.synchronize();
  if (parts_.communicator.rank() == 0) StateSnapshot(parts_.network).save(options_.last_good);
  if (apart) return fmt::format("; the last average of all ranks is in {}", options_.last_good.string());
  return fmt::format("; the state {} is in {}",
                     done ? fmt::format("after step {}", failed_step + 1) : "before this step",
                     options_.last_good.string());
}

// Of steps that every rank judges alone, those of all ranks.
std::int64_t Trainer::skipped_on_all_ranks() {
  if (!local_) return skipped_;
  const std::vector<std::int64_t> skipped = gather_values(parts_.communicator.host(), skipped_);
  return std::accumulate(skipped.begin(), skipped.end(), std::int64_t{0});
}

}  // namespace lockstep
