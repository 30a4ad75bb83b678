// SPDX-License-Identifier: Apache-2.0
//
// Records of a training: plain data that the Trainer passes to its observers (training_observer.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/system/processor_time.h"
#include "core/timeline.h"
#include "launch/train/clock/ledger.h"
#include "launch/train/evaluation/metrics.h"
#include "launch/train/step/loss_totals.h"

namespace lockstep {

struct Evaluation {
  double loss = 0;
  double accuracy = 0;  // fraction
  std::int64_t samples = 0;
  std::optional<EvaluationMetrics> metrics = {};
};

// A step that has ended on the host. A GPU may still compute it.
struct StepRecord {
  std::int64_t epoch = 0;         // from 1
  std::int64_t epoch_step = 0;    // completed steps of the epoch
  std::int64_t epoch_steps = 0;   // of the epoch when it ends, or when train.steps ends it
  std::int64_t step = 0;          // completed steps since the start of training
  double loss = 0;                // mean of this rank's settled steps in the epoch; NaN: none yet
  double samples_per_second = 0;  // of the epoch so far, over all ranks; 0: no step is settled
};

// Sums of this rank: steps and times since the trainer began, losses of the epoch. Differences describe the
// steps between two readings in an epoch.
struct StepTotals {
  std::int64_t epoch_step = 0;      // completed steps of the epoch
  std::int64_t samples = 0;         // of these steps, on all ranks
  std::int64_t steps = 0;           // this rank's; on a ring others than epoch_step counts
  StepAccount account;              // see StepClock::so_far()
  double without_core_seconds = 0;  // see Trainer::compute_without_core()
  double loader_seconds = 0;        // CPU time of the training loader
  LossTotals losses;                // of the epoch's settled steps
};

// The last settled step. On a GPU it is one step older than the last enqueued one.
struct LastStep {
  double learning_rate = 0;  // of the last enqueued step
  double loss_scale = 1;     // after the step
  // Norm of the gradients that the optimizer took: of the mean over the global batch, or a rank's own where
  // each rank takes its own. Not finite: not known.
  double gradient_norm = 0;
};

// An evaluation within an epoch (TrainerOptions::evaluate_every).
struct EvaluationRecord {
  std::int64_t epoch = 0;  // from 1
  std::int64_t step = 0;   // completed steps since the start of training
  Evaluation evaluation;
  double seconds = 0;
};

// The steps of an epoch, or of the part of it that was trained since a resume or until train.steps. Values
// are this rank's, unless "all ranks" is said.
struct EpochRecord {
  std::int64_t epoch = 0;                        // from 1
  std::int64_t step = 0;                         // completed steps since the start of training
  std::int64_t steps = 0;                        // of this record; on a ring this rank's
  std::int64_t samples = 0;                      // of all ranks
  double train_loss = 0;                         // mean over the samples of all ranks
  double learning_rate = 0;                      // of the last step
  double samples_per_second = 0;                 // over all ranks, without evaluations
  double train_seconds = 0;                      // wall time, without evaluations
  std::int64_t skipped_steps = 0;                // of all ranks: their gradients were not finite
  double loss_scale = 1;                         // after the last step
  StepAccount account;                           // adds up to train_seconds
  ProcessorAccount processor;                    // CPU time of the process
  double without_core_seconds = 0;               // of its steps: see Trainer::compute_without_core()
  std::optional<LedgerSums> ledger = {};         // of gradients' buckets; nullopt: one rank, or no timed step
  double communication_without_core = 0;         // seconds; the communication thread had no core
  std::vector<std::int64_t> steps_by_rank = {};  // on a ring (comm.topology); else empty
  // Evaluations within the epoch, then all of them, with the one after it.
  std::int64_t evaluations_within = 0;
  double within_seconds = 0;
  double evaluation_seconds = 0;
  double metrics_seconds = 0;                 // part of evaluation_seconds
  std::optional<Evaluation> evaluation = {};  // after the epoch; nullopt: not due, or not made yet
};

}  // namespace lockstep
