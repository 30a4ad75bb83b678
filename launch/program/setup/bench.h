// SPDX-License-Identifier: Apache-2.0
//
// Bench: builds trainings in this process to measure them. They train on the user's data; their parameters
// are discarded with them. One of them can be kept as the reference; others are built beside it, and run in
// turns with it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "comm/communicator.h"
#include "comm/world.h"
#include "core/error.h"
#include "launch/program/setup/bench_block.h"
#include "launch/program/setup/training_setup.h"
#include "launch/train/trainer.h"

namespace lockstep {

class MeasuredTraining {
 public:
  // Collective, as all members. datasets: shared with another training on the same data; null: opens and
  // compares them. Makes its own communicator. Throws what TrainingSetup throws.
  MeasuredTraining(World& world, const Config& config, const Registry& registry, const Datasets& datasets);
  MeasuredTraining(MeasuredTraining&&) = delete;

  TrainingSetup& training() { return *training_; }
  Trainer& trainer() { return *trainer_; }
  std::int64_t global_batch() { return training_->train_loader().global_batch(); }
  // Runs steps that are not measured, and waits for them.
  void warm_up(std::int64_t steps);
  // Runs steps and measures them on this rank. Starts on all ranks of `control` at the same time.
  BenchBlock block(Communicator& control, std::int64_t steps);

 private:
  World& world_;
  AllReduceWay between_nodes_;
  std::unique_ptr<Communicator> communicator_;
  std::optional<TrainingSetup> training_;
  std::optional<Trainer> trainer_;
};

class Bench {
 public:
  // On a GPU the third and the fourth step are recorded for replay (launch/train/step/step_recordings.h).
  static constexpr std::int64_t kGpuWarmUpSteps = 5;

  // Ranks agree over `control`. All arguments outlive this.
  Bench(World& world, Communicator& control, const Registry& registry)
      : world_(world), control_(control), registry_(registry) {}

  // Collective, as all members that follow. Trainings of one bench share their data.
  std::unique_ptr<MeasuredTraining> build(const Config& config);
  // Calls `build`, which makes a training beside the reference. Where memory has no room for both, frees the
  // reference and returns null.
  using Build = std::function<std::unique_ptr<MeasuredTraining>()>;
  std::unique_ptr<MeasuredTraining> build_beside_reference(const Build& build);
  // The longest times of any rank and the mean share of busy time; the same on every rank.
  BenchBlock block(MeasuredTraining& built, std::int64_t steps);
  // The time on the slowest rank; the same on every rank.
  double agreed_seconds_since(std::int64_t begin_ns);

  const Datasets& datasets() const { return datasets_; }
  // Null if there is none.
  MeasuredTraining* reference() { return reference_.get(); }
  void set_reference(std::unique_ptr<MeasuredTraining> built) { reference_ = std::move(built); }

 private:
  World& world_;
  Communicator& control_;
  const Registry& registry_;
  Datasets datasets_;
  std::unique_ptr<MeasuredTraining> reference_;
};

// True if all ranks agree that the configuration is invalid or lacks memory: another one may work.
bool is_of_configuration(const Error& error);
// True if all ranks agree on an error with exit_code::io, such as MemoryError.
bool is_shortage(const Error& error);

}  // namespace lockstep
