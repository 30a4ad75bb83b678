// SPDX-License-Identifier: Apache-2.0
//
// StepSeries: a summary line of a rank's steps after every N steps of an epoch, and one for the remaining
// steps at its end. It reads only values that have arrived on the host: no step waits for it.
#pragma once

#include <cstdint>
#include <optional>

#include "core/timeline.h"
#include "launch/train/training_records.h"

namespace lockstep {

// The steps since the previous line, or since the epoch began.
struct StepLine {
  std::int64_t epoch = 0;  // from 1
  std::int64_t step = 0;   // number of the last step, counted from the start of training
  std::int64_t steps = 0;  // this rank's
  double loss = 0;         // mean over this rank's samples, on a GPU one step older; NaN: no samples
  // Norm of the gradients that the optimizer applied in the last step: the mean over the global batch, or
  // this rank's own where each rank applies its own. On a GPU, that of one step before. Not finite: not
  // known.
  double gradient_norm = 0;
  double learning_rate = 0;         // in the last step
  double loss_scale = 1;            // after the last step
  double samples_per_second = 0;    // over all ranks
  double busy = 0;                  // see busy_share()
  std::optional<double> peak = {};  // samples per second over the attainable rate (busy.h)
  StepAccount account;              // this rank's; adds up to the wall time
  double without_core_seconds = 0;  // mean over its compute threads: Trainer::compute_without_core()
  double loader_seconds = 0;        // core time of this rank's loader
  // Evaluations within the epoch before these steps; not in the account.
  double evaluation_seconds = 0;
  // Parts of Phase::idle and Phase::rest: writing the previous line, and waiting for checkpoints.
  double telling_seconds = 0, saving_seconds = 0;
};

// Samples per second of a line, including the evaluations before it.
double overall_rate(const StepLine& line);
// The share of that time in which the device computed for training.
double overall_busy(const StepLine& line);

class StepSeries {
 public:
  // every: steps of the epoch between lines.
  StepSeries(std::int64_t every, const StepTotals& begin);
  bool due(std::int64_t epoch_step) const { return epoch_step / every_ > last_.epoch_step / every_; }
  // True if there were steps since the last line.
  bool open(std::int64_t epoch_step) const { return epoch_step > last_.epoch_step; }
  // Fills in all but epoch, step, learning rate and loss scale, which the caller sets.
  StepLine take(const StepTotals& totals);

 private:
  std::int64_t every_;
  StepTotals last_;
  std::int64_t last_ns_;
};

}  // namespace lockstep
