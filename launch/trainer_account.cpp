// SPDX-License-Identifier: Apache-2.0
//
// Where the time of a Trainer's steps went, and what else is told of them.
#include <algorithm>
#include <utility>
#include <vector>

#include "core/processor_time.h"
#include "launch/parameter_histograms.h"
#include "launch/trainer.h"

namespace lockstep {

// The whole is asked for last, so that it holds the parts.
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
  if (end_->in_lockstep()) epoch.advice = advise(epoch, context);  // there is no exchange to be faster
  return epoch;
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
  report.series(line);
}

}  // namespace lockstep
