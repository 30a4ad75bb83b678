// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/jobs/progress_publisher.h"

#include "launch/observe/account/busy.h"

namespace lockstep {
namespace {

// Published values cover about a second of steps. At the end of an epoch they cover at least a quarter,
// unless nothing was published for a second.
constexpr std::int64_t kWindowNs = 1'000'000'000;
constexpr std::int64_t kLeastWindowNs = kWindowNs / 4;

}  // namespace

void ProgressPublisher::before_step() {
  if (window_) return;
  begin_window();
  shown_.enter(Activity::training);
}

bool ProgressPublisher::evaluating(std::int64_t batch, std::int64_t) {
  if (batch == 0) shown_.enter(Activity::evaluating);
  return true;
}

void ProgressPublisher::show(const std::optional<Evaluation>& evaluation) {
  if (evaluation) {
    shown_.tell([&](RankProgress& progress) {
      progress.test_loss = evaluation->loss;
      progress.test_accuracy = evaluation->accuracy;
    });
  }
  shown_.enter(Activity::training);
}

void ProgressPublisher::begin_window() {
  window_.emplace(1, trainer_.totals());
  window_begin_ns_ = now_ns();
  window_settled_ = trainer_.settled_steps();
}

void ProgressPublisher::steps_over() {
  window_.reset();
  shown_.tell([&](RankProgress& progress) { progress.total = trainer_.totals().account; });
}

void ProgressPublisher::step_done(const StepRecord& record) {
  // On a GPU this step is enqueued but has not run, so the window starts here.
  if (trainer_.settled_steps() == window_settled_) begin_window();
  const std::int64_t now = now_ns();
  shown_.tell([&](RankProgress& progress) {
    progress.epoch = record.epoch;
    progress.epoch_step = record.epoch_step;
    progress.epoch_steps = record.epoch_steps;
    progress.step = record.step;
    progress.step_ns = now;
    ++progress.own_steps;
    if (window_is_over(progress, now)) close_window(progress, now);
  });
}

bool ProgressPublisher::window_is_over(const RankProgress& progress, std::int64_t now) const {
  if (!window_->open(progress.epoch_step)) return false;
  const std::int64_t open_ns = now - window_begin_ns_;
  const bool ends = progress.epoch_step == progress.epoch_steps;
  return progress.window_steps == 0 || open_ns >= kWindowNs ||
         (ends && (open_ns >= kLeastWindowNs || now - progress.window_ns >= kWindowNs));
}

void ProgressPublisher::close_window(RankProgress& progress, std::int64_t now) {
  const StepTotals totals = trainer_.totals();
  const StepLine line = window_->take(totals);
  progress.window_steps = line.steps;
  progress.window_step = progress.step;
  progress.window_ns = window_begin_ns_ = now;
  progress.loss = line.loss;
  progress.learning_rate = trainer_.last_step().learning_rate;
  progress.samples_per_second = line.samples_per_second;
  progress.busy = line.busy;
  if (attainable_) progress.peak = peak_share(line.samples_per_second, *attainable_);
  progress.account = line.account;
  progress.total = totals.account;
  const auto began_ns = now - static_cast<std::int64_t>(1e9 * line.account.total());
  if (line.busy >= kHardlyBusy)
    progress.idle_since_ns = 0;
  else if (progress.idle_since_ns == 0)
    progress.idle_since_ns = began_ns;
}

}  // namespace lockstep
