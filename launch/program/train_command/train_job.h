// SPDX-License-Identifier: Apache-2.0
//
// TrainJob: the objects of one start of `lockstep train`, in the order of their construction, and the
// functions that build them for each other. The Trainer (trainer.h) trains; the command (train_command.cpp)
// orders the calls.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "comm/communicator.h"
#include "comm/world.h"
#include "launch/observe/account/busy.h"
#include "launch/observe/account/idle_cause.h"
#include "launch/observe/jobs/shown_rank.h"
#include "launch/observe/monitor/monitor.h"
#include "launch/observe/profile/step_profiler.h"
#include "launch/observe/profile/trace.h"
#include "launch/observe/run_files/report.h"
#include "launch/observe/run_files/run_folder.h"
#include "launch/program/commands/command_line.h"
#include "launch/program/config/config.h"
#include "launch/program/resume/training_keeper.h"
#include "launch/program/setup/training_setup.h"
#include "launch/train/checkpoint/saved_training.h"
#include "launch/train/evaluation/best_evaluation.h"
#include "launch/train/evaluation/best_keeper.h"
#include "launch/train/trainer.h"

namespace lockstep {

// Outlives an error of this rank: see run_or_abort().
struct TrainJob {
  std::unique_ptr<Communicator> communicator;
  Config config;
  std::optional<RunLock> lock;  // on rank 0 only
  std::optional<ShownRank> shown;
  std::optional<ShownActivity> saving;  // while training waits for a checkpoint
  std::optional<TrainingSetup> training;
  std::optional<Trainer> trainer;
  std::optional<Report> report;
  std::optional<SavedTraining> saved;  // resumed training; reset once it is loaded
  std::optional<BestEvaluation> best;
  bool best_is_of_other_figure = false;  // best.safetensors was chosen by another run.stop_metric
  std::optional<TrainingKeeper> checkpoints;
  std::optional<BestKeeper> best_keeper;
  JobTrace trace;  // on rank 0: for --trace
  std::optional<StepProfiler> profiler;
};

// Builds training and trainer from job.config and, if set, job.saved. Collective; throws agreed errors.
void build(TrainJob& job, const Command& command, World& world);

// Builds the report, which begins or continues the files of run_dir. Collective; throws agreed errors.
void begin_report(TrainJob& job, const World& world);

// The number of epochs whose lines metrics.jsonl keeps; nullopt where a new file begins.
std::optional<std::int64_t> saved_epochs(const TrainJob& job);

// Collective. On a CPU, tries whether one thread fewer per rank is faster
// (launch/train/trials/thread_trial.h). Does nothing where train.threads is set, with train.reproducible or
// with --trace on any rank, and where the trial's steps could not be undone: with an exchange that has state,
// or on a ring.
void choose_threads_by_trial(TrainJob& job, const Command& command);

// The facts of this run that explain idle devices. The result refers to all arguments but attainable.
IdleContext idle_context(TrainJob& job, const World& world, const DeviceMonitor* monitor,
                         const std::optional<Attainable>& attainable);

}  // namespace lockstep
