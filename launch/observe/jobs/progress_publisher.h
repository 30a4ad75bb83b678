// SPDX-License-Identifier: Apache-2.0
//
// ProgressPublisher: publishes the progress of a training to other processes of this node (ShownRank): the
// position after every step, and rates of a window of the last steps.
#pragma once

#include <cstdint>
#include <optional>

#include "launch/observe/account/step_series.h"
#include "launch/observe/jobs/shown_rank.h"
#include "launch/train/trainer.h"
#include "launch/train/training_observer.h"

namespace lockstep {

class ProgressPublisher final : public TrainingObserver {
 public:
  // attainable: samples per second of all ranks, see measure_attainable(). References outlive this.
  ProgressPublisher(Trainer& trainer, ShownRank& shown, std::optional<double> attainable)
      : trainer_(trainer), shown_(shown), attainable_(attainable) {}

  void before_step() override;
  void step_done(const StepRecord& record) override;
  void steps_over() override;
  bool evaluating(std::int64_t batch, std::int64_t batches) override;
  void evaluated_within(const EvaluationRecord& record) override { show(record.evaluation); }
  void epoch_over(const EpochRecord& record) override { show(record.evaluation); }

 private:
  // Publishes an evaluation, if there is one, and its end.
  void show(const std::optional<Evaluation>& evaluation);
  void begin_window();
  bool window_is_over(const RankProgress& progress, std::int64_t now) const;
  void close_window(RankProgress& progress, std::int64_t now);

  Trainer& trainer_;
  ShownRank& shown_;
  std::optional<double> attainable_;
  std::optional<StepSeries> window_;  // null between epochs
  std::int64_t window_begin_ns_ = 0;
  std::int64_t window_settled_ = 0;  // Trainer::settled_steps() at its begin
};

}  // namespace lockstep
