// SPDX-License-Identifier: Apache-2.0
//
// The observers that pass a training to its Report: each epoch, a line for every few steps, and histograms.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/gradients/buckets.h"
#include "core/stream.h"
#include "launch/observe/account/advice.h"
#include "launch/observe/account/more_ranks.h"
#include "launch/observe/account/step_series.h"
#include "launch/observe/run_files/report.h"
#include "launch/train/trainer.h"
#include "launch/train/training_observer.h"
#include "models/network.h"

namespace lockstep {

// Shows the progress of epochs and evaluations, and reports them.
class EpochReporter final : public TrainingObserver {
 public:
  struct Options {
    AdviceContext advice;  // without measurements, which this fills in
    RanksNow ranks;
    std::int64_t accumulation = 1;
    std::optional<double> attainable;  // samples per second of all ranks: see measure_attainable()
    // Collective; called after the steps of an epoch with their number of samples. Returns
    // EpochReport::device. Null: no monitor.
    std::function<std::optional<MonitoredEpoch>(std::int64_t samples)> device;
  };
  // All references outlive this.
  EpochReporter(const Trainer& trainer, GradientBuckets& buckets, Communicator& host, Report& report,
                Options options);

  void step_done(const StepRecord& record) override { report_.step(record); }
  bool evaluating(std::int64_t batch, std::int64_t batches) override;
  void evaluated_within(const EvaluationRecord& record) override { report_.evaluation(record); }
  void epoch_trained(const EpochRecord& record) override;
  void epoch_over(const EpochRecord& record) override;

 private:
  void add_communication(const EpochRecord& record);

  const Trainer& trainer_;
  GradientBuckets& buckets_;
  Communicator& host_;
  Report& report_;
  Options options_;
  EpochReport epoch_;  // the epoch that was trained last
};

// On rank 0: writes a StepLine after every `every` steps of an epoch, and one for the remaining steps before
// a checkpoint, an evaluation and the epoch's end. If a step with gradients that are not finite ends the
// training, the time of the last line includes that step and the search for the origin.
class SeriesReporter final : public TrainingObserver {
 public:
  // every: run.log_every > 0. trainer and report outlive this.
  SeriesReporter(Trainer& trainer, Report& report, std::int64_t every, std::optional<double> attainable)
      : trainer_(trainer), report_(report), every_(every), attainable_(attainable) {}

  void before_step() override;
  void step_done(const StepRecord& record) override;
  void steps_over() override;
  // The next line includes the time of the copy.
  void saving() override;
  // Called with true when training begins to wait for a checkpoint, and with false afterwards.
  void waiting(bool waits);
  std::string save_last_good() override;
  void evaluated_within(const EvaluationRecord& record) override { evaluation_seconds_ += record.seconds; }

 private:
  void end_line();
  void write();

  Trainer& trainer_;
  Report& report_;
  std::int64_t every_;
  std::optional<double> attainable_;
  std::optional<StepSeries> series_;  // begins with the first step after steps_over()
  StepRecord last_;
  // Since the previous line: evaluations within the epoch, and seconds spent writing that line.
  double evaluation_seconds_ = 0, writing_seconds_ = 0;
  double saving_seconds_ = 0;          // since the previous line: waits for checkpoints
  std::int64_t waiting_since_ns_ = 0;  // of the current wait
};

// On rank 0: writes histograms of weights and gradients after every `every` epochs (run.histograms).
class HistogramReporter final : public TrainingObserver {
 public:
  // References outlive this.
  HistogramReporter(Trainer& trainer, Network& network, Report& report, std::int64_t every)
      : trainer_(trainer),
        network_(network),
        report_(report),
        every_(every),
        stream_(trainer.device(), StreamUse::compute) {}

  void epoch_trained(const EpochRecord& record) override;
  void epoch_over(const EpochRecord& record) override;

 private:
  bool due(const EpochRecord& record) const { return record.epoch % every_ == 0; }

  Trainer& trainer_;
  Network& network_;
  Report& report_;
  std::int64_t every_;
  Stream stream_;                     // not the trainer's: all steps are settled when it reads
  std::vector<Histogram> gradients_;  // gradients of the epoch that was trained last
};

}  // namespace lockstep
