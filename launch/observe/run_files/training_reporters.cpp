// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/run_files/training_reporters.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "comm/agreement.h"
#include "core/timeline.h"
#include "launch/observe/account/busy.h"
#include "launch/observe/monitor/process.h"
#include "launch/observe/tensorboard/parameter_histograms.h"
#include "launch/train/clock/communication.h"

namespace lockstep {

EpochReporter::EpochReporter(const Trainer& trainer, GradientBuckets& buckets, Communicator& host,
                             Report& report, Options options)
    : trainer_(trainer), buckets_(buckets), host_(host), report_(report), options_(std::move(options)) {}

bool EpochReporter::evaluating(std::int64_t batch, std::int64_t batches) {
  if (batch > 0) report_.evaluating(batch, batches);
  return true;
}

void EpochReporter::epoch_trained(const EpochRecord& record) {
  epoch_ = EpochReport{record};
  epoch_.busy_by_rank = gather_values(host_, busy_share(record.account, record.without_core_seconds));
  epoch_.busy = std::accumulate(epoch_.busy_by_rank.begin(), epoch_.busy_by_rank.end(), 0.0) /
                static_cast<double>(epoch_.busy_by_rank.size());
  epoch_.resident_bytes_by_rank = gather_values(host_, own_resident_bytes());
  epoch_.device_memory = device_memory_use(trainer_.device());
  if (options_.device) epoch_.device = options_.device(record.samples);
  if (options_.attainable) epoch_.peak = peak_share(record.samples_per_second, *options_.attainable);
  if (record.ledger) add_communication(record);
  if (!trainer_.in_lockstep()) return;
  epoch_.more_ranks = more_ranks({.busy = epoch_.busy,
                                  .samples_per_second = record.samples_per_second,
                                  .steps = static_cast<double>(record.steps),
                                  .seconds = record.train_seconds,
                                  .backward = record.account[Phase::backward],
                                  .accumulation = options_.accumulation,
                                  .communication = epoch_.communication ? &*epoch_.communication : nullptr},
                                 options_.ranks);
}

void EpochReporter::add_communication(const EpochRecord& record) {
  const auto steps = static_cast<double>(std::max<std::int64_t>(1, record.ledger->steps));
  std::vector<double> bytes;
  for (const Bucket& bucket : buckets_.buckets())
    bytes.push_back(static_cast<double>(bucket.sent_bytes(buckets_.sent_type())));
  epoch_.communication =
      gather_communication(host_, *record.ledger, std::move(bytes), record.communication_without_core);
  if (!trainer_.in_lockstep()) return;  // no exchange per step, so there is nothing to advise
  AdviceContext context = options_.advice;
  context.step_seconds = record.train_seconds / steps;
  context.samples_per_second = record.samples_per_second;
  context.accumulation = options_.accumulation;
  context.forward_seconds =
      record.account[Phase::forward] / (steps * static_cast<double>(options_.accumulation));
  epoch_.advice = advise(*epoch_.communication, context);
}

void EpochReporter::epoch_over(const EpochRecord& record) {
  static_cast<EpochRecord&>(epoch_) = record;
  report_.epoch(epoch_);
}

void SeriesReporter::before_step() {
  if (series_) return;
  series_.emplace(every_, trainer_.totals());
  saving_seconds_ = 0;  // no line has the time before
}

void SeriesReporter::step_done(const StepRecord& record) {
  last_ = record;
  // steps_over() writes the last line: on a ring more steps of this rank may have the same number.
  if (series_ && record.epoch_step < record.epoch_steps && series_->due(record.epoch_step)) write();
}

void SeriesReporter::steps_over() {
  end_line();
  series_.reset();
}

void SeriesReporter::saving() {
  end_line();
  waiting_since_ns_ = now_ns();  // a wait that goes on belongs to the next line from here
}

void SeriesReporter::waiting(bool waits) {
  if (waits)
    waiting_since_ns_ = now_ns();
  else
    saving_seconds_ += seconds_since(waiting_since_ns_);
}

std::string SeriesReporter::save_last_good() {
  steps_over();
  return {};
}

void SeriesReporter::end_line() {
  if (series_ && series_->open(trainer_.totals().epoch_step)) write();
}

void SeriesReporter::write() {
  const LastStep last = trainer_.last_step();
  StepLine line = series_->take(trainer_.totals());
  line.epoch = last_.epoch;
  line.step = trainer_.steps();
  line.learning_rate = last.learning_rate;
  line.loss_scale = last.loss_scale;
  line.gradient_norm = last.gradient_norm;
  if (attainable_) line.peak = peak_share(line.samples_per_second, *attainable_);
  line.evaluation_seconds = std::exchange(evaluation_seconds_, 0.0);
  line.saving_seconds = std::exchange(saving_seconds_, 0.0);
  line.telling_seconds = writing_seconds_;
  writing_seconds_ = report_.series(line);
}

// Before the evaluation, which overwrites gradients where ranks train apart.
void HistogramReporter::epoch_trained(const EpochRecord& record) {
  gradients_.clear();
  if (!due(record) || !trainer_.holds_gradients()) return;
  gradients_ = gradient_histograms(network_, stream_, trainer_.gradients_scale());
}

void HistogramReporter::epoch_over(const EpochRecord& record) {
  if (!due(record)) return;
  std::vector<Histogram> histograms = std::exchange(gradients_, {});
  trainer_.with_evaluated_weights(
      [&] { std::ranges::move(weight_histograms(network_, stream_), std::back_inserter(histograms)); });
  report_.histograms(record.step, histograms);
}

}  // namespace lockstep
