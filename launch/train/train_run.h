// SPDX-License-Identifier: Apache-2.0
//
// TrainRun: what one start of `lockstep train` holds, from the lock of its folder to the trainer, in the
// order in which it comes to be; and how the parts are built for each other. What trains is the Trainer
// (trainer.h); the command (train_command.cpp) says what happens when.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "comm/world.h"
#include "launch/account/busy.h"
#include "launch/account/idle_cause.h"
#include "launch/best_evaluation.h"
#include "launch/best_keeper.h"
#include "launch/checkpoint/resume.h"
#include "launch/checkpoint/training_keeper.h"
#include "launch/commands/commands.h"
#include "launch/config/config.h"
#include "launch/monitor/monitor.h"
#include "launch/monitor/shown_rank.h"
#include "launch/profile/step_profiler.h"
#include "launch/run_files/report.h"
#include "launch/run_files/run_folder.h"
#include "launch/trainer.h"
#include "launch/training.h"

namespace lockstep {

// It outlives an error of this rank: see run_or_abort().
struct TrainRun {
  std::unique_ptr<Communicator> communicator;
  Config config;
  std::optional<RunLock> lock;     // rank 0's
  std::optional<ShownRank> shown;  // by the trainer
  std::optional<Training> training;
  std::optional<Report> report;
  std::optional<Trainer> trainer;
  std::optional<SavedTraining> saved;  // that this one goes on from
  std::optional<BestEvaluation> best;
  std::optional<TrainingKeeper> checkpoints;
  std::optional<BestKeeper> best_keeper;
  std::string trace;  // rank 0's: what --trace writes
  std::optional<StepProfiler> profiler;
};

// Collective; throws agreed errors. Training, report and trainer, of run.config and, where there is one, of
// run.saved.
void build(TrainRun& run, const Command& command, World& world);

// Whose lines metrics.jsonl has already; nothing where it begins anew.
std::optional<std::int64_t> saved_epochs(const TrainRun& run);

// Collective. Not where somebody chose the threads, or wants the same bits from any number of ranks, or a
// trace of the training alone; nor where the trial's steps are remembered, by an exchange or by neighbours on
// a ring.
void choose_threads_by_trial(TrainRun& run, const Command& command);

// What is known of this run where its devices are idle. It refers to all of them.
IdleContext idle_context(TrainRun& run, const World& world, const DeviceMonitor* monitor,
                         const std::optional<Attainable>& attainable);

}  // namespace lockstep
