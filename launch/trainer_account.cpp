// SPDX-License-Identifier: Apache-2.0
//
// A Trainer's account of its steps: times, communication, series and published progress.
#include <algorithm>
#include <utility>
#include <vector>

#include "core/processor_time.h"
#include "launch/parameter_histograms.h"
#include "launch/trainer.h"

namespace lockstep {
namespace {

// Published values cover about a second of steps. At the end of an epoch they cover at least a quarter,
// unless nothing was published for a second.
constexpr std::int64_t kWindowNs = 1'000'000'000;
constexpr std::int64_t kLeastWindowNs = kWindowNs / 4;

}  // namespace

// Reads the total last, so that it includes the parts.
ProcessorAccount Trainer::processor_account() {
  ProcessorAccount account{.data = parts_.train.processor_seconds() + parts_.test.processor_seconds()};
  for (Communicator* communicator : recordings_.communicators()) {
    if (communicator->size() > 1) account.communication += communicator->stream().processor_seconds();
  }
  account.compute = processor_seconds() - account.communication - account.data;
  return account;
}

EpochCommunication Trainer::communication(const EpochReport& line, double no_core_before) {
  LedgerSums sums = ledger_->take();
  AdviceContext context = options_.advice;
  context.step_seconds = line.train_seconds / static_cast<double>(std::max<std::int64_t>(1, sums.steps));
  context.samples_per_second = line.samples_per_second;
  context.accumulation = options_.accumulation;
  context.forward_seconds =
      line.account[Phase::forward] /
      static_cast<double>(std::max<std::int64_t>(1, sums.steps) * options_.accumulation);
  std::vector<double> bytes;
  for (const Bucket& bucket : parts_.buckets.buckets()) bytes.push_back(static_cast<double>(bucket.bytes()));
  EpochCommunication epoch =
      gather_communication(parts_.communicator.host(), std::move(sums), std::move(bytes),
                           seconds_without_core_for_communication() - no_core_before);
  if (end_->in_lockstep()) epoch.advice = advise(epoch, context);  // else there is no exchange to speed up
  return epoch;
}

std::optional<MoreRanks> Trainer::more_ranks(const EpochReport& line, std::int64_t steps) const {
  if (!options_.ranks || !end_->in_lockstep()) return std::nullopt;
  return lockstep::more_ranks({.busy = line.busy(),
                               .samples_per_second = line.samples_per_second,
                               .steps = static_cast<double>(steps),
                               .seconds = line.train_seconds,
                               .backward = line.account[Phase::backward],
                               .communication = line.communication ? &*line.communication : nullptr},
                              *options_.ranks);
}

double Trainer::seconds_without_core_for_communication() {
  Stream& stream = parts_.communicator.stream();
  if (!stream.runs_on_host() || !ledger_) return 0;
  double seconds = 0;
  stream.enqueue([&seconds] { seconds = seconds_without_core(); });
  stream.synchronize();
  return seconds;
}

double Trainer::compute_without_core() {
  return parts_.network.backend().seconds_without_core(clock_.waits_without_core());
}

bool Trainer::tells_histograms() const {
  return options_.histograms_every > 0 && (epoch_ + 1) % options_.histograms_every == 0 &&
         parts_.communicator.rank() == 0;
}

std::vector<Histogram> Trainer::last_gradients() {
  if (!tells_histograms() || step_ == 0 || !end_->holds_gradients(step_ - 1)) return {};
  return gradient_histograms(parts_.network, stream_, gradients_scale_);
}

std::optional<StepSeries> Trainer::begin_series() {
  if (options_.log_every == 0 || parts_.communicator.rank() != 0) return std::nullopt;
  return StepSeries(options_.log_every, series_place());
}

// A new epoch's totals begin when its first step is settled.
StepSeries::Place Trainer::series_place() {
  return {.epoch_step = epoch_step_,
          .account = clock_.so_far(),
          .without_core_seconds = compute_without_core(),
          .loader_seconds = parts_.train.processor_seconds(),
          .totals = epoch_step_ == 0 ? LossTotals{} : totals_};
}

bool Trainer::asks_for_norm() const {
  const bool wanted = stream_.runs_on_host() ? norm_wanted_ : options_.log_every > 0;
  return wanted && end_->has_norm();
}

void Trainer::tell_series(Report& report, StepSeries& series) {
  StepLine line = series.take(series_place(), parts_.train.global_batch());
  line.epoch = epoch_ + 1;
  line.step = step_;
  line.learning_rate = schedule_.at(step_ - 1);
  line.loss_scale = loss_scale_;
  line.gradient_norm = gradient_norm_;
  if (attainable_) line.peak = line.samples_per_second / *attainable_;
  line.evaluation_seconds = std::exchange(evaluation_seconds_, 0.0);
  line.telling_seconds = telling_seconds_;
  telling_seconds_ = report.series(line);
}

void Trainer::begin_window() {
  if (shown_ == nullptr) return;
  restart_window();
  shown_->enter(Activity::training);
}

void Trainer::restart_window() {
  window_.emplace(1, series_place());
  window_begin_ns_ = now_ns();
  window_settled_ = settled_;
}

void Trainer::show_step(std::int64_t epoch_steps) {
  if (shown_ == nullptr) return;
  // On a GPU the first step has only begun when it is enqueued: the window starts here.
  if (settled_ == window_settled_) restart_window();
  const std::int64_t now = now_ns();
  shown_->tell([&](RankProgress& progress) {
    progress.epoch = epoch_ + 1;
    progress.epoch_step = epoch_step_;
    progress.epoch_steps = epoch_steps;
    progress.step = step_;
    progress.step_ns = now;
    if (window_is_over(progress, now)) close_window(progress, now);
  });
}

bool Trainer::window_is_over(const RankProgress& progress, std::int64_t now) const {
  if (!window_->open(epoch_step_)) return false;
  const std::int64_t open_ns = now - window_begin_ns_;
  const bool ends = progress.epoch_step == progress.epoch_steps;
  return progress.window_steps == 0 || open_ns >= kWindowNs ||
         (ends && (open_ns >= kLeastWindowNs || now - progress.window_ns >= kWindowNs));
}

void Trainer::close_window(RankProgress& progress, std::int64_t now) {
  const StepLine line = window_->take(series_place(), parts_.train.global_batch());
  progress.window_steps = line.steps;
  progress.window_step = step_;
  progress.window_ns = window_begin_ns_ = now;
  progress.loss = line.loss;
  progress.learning_rate = schedule_.at(step_ - 1);
  progress.samples_per_second = line.samples_per_second;
  progress.busy = line.busy;
  if (attainable_) progress.peak = line.samples_per_second / *attainable_;
  progress.account = line.account;
  const auto began_ns = now - static_cast<std::int64_t>(1e9 * line.account.total());
  if (line.busy >= kHardlyBusy)
    progress.idle_since_ns = 0;
  else if (progress.idle_since_ns == 0)
    progress.idle_since_ns = began_ns;
}

}  // namespace lockstep
