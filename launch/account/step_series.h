// SPDX-License-Identifier: Apache-2.0
//
// StepSeries: what a rank's steps came to, a line for every so many of an epoch, and one for those that are
// left at its end. It asks for nothing that has not come to the host by itself: no step waits for it.
#pragma once

#include <cstdint>
#include <optional>

#include "core/timeline.h"
#include "launch/loss_totals.h"

namespace lockstep {

// Of the steps since the line before, or since the epoch began.
struct StepLine {
  std::int64_t epoch = 0;  // from 1
  std::int64_t step = 0;   // since the start of training: the last of them
  std::int64_t steps = 0;
  double loss = 0;  // the mean over this rank's samples, on a GPU of one step before; NaN: none
  // Of what the last step's optimizer took: gradients of the mean over the global batch, or of a rank's own
  // where each takes its own. On a GPU of one step before. Not finite, or NaN: not told.
  double gradient_norm = 0;
  double learning_rate = 0;         // of the last step
  double loss_scale = 1;            // after it
  double samples_per_second = 0;    // over all ranks
  double busy = 0;                  // see busy_share()
  std::optional<double> peak = {};  // samples per second over what is attainable (launch/account/busy.h)
  StepAccount account;              // of this rank; adds up to the wall time
  double without_core_seconds = 0;  // of its compute threads, their mean (Backend::seconds_without_core)
  double loader_seconds = 0;        // of cores, that this rank's loader took meanwhile
  // Evaluations within the epoch that came before its steps: no part of the account.
  double evaluation_seconds = 0;
  double telling_seconds = 0;  // what telling of the line before took: of Phase::rest
};

// Samples per second of a line, with the evaluations before it.
double overall_rate(const StepLine& line);
// The share of that time in which the device computed for training.
double overall_busy(const StepLine& line);

class StepSeries {
 public:
  // Where a training stands between two steps.
  struct Place {
    std::int64_t epoch_step = 0;  // steps that the epoch has come to
    StepAccount account;          // since any moment
    double without_core_seconds = 0;
    double loader_seconds = 0;
    LossTotals totals;  // of the epoch
  };

  // every: steps of the epoch from line to line.
  StepSeries(std::int64_t every, const Place& begin);
  bool due(std::int64_t epoch_step) const { return epoch_step / every_ > last_.epoch_step / every_; }
  // Whether there were steps since the last line.
  bool open(std::int64_t epoch_step) const { return epoch_step > last_.epoch_step; }
  // What the line is filled in with: epoch, step, learning rate and loss scale are the caller's.
  StepLine take(const Place& place, std::int64_t global_batch);

 private:
  std::int64_t every_;
  Place last_;
  std::int64_t last_ns_;
};

}  // namespace lockstep
