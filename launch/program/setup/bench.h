// SPDX-License-Identifier: Apache-2.0
//
// BenchTraining: a training that is built to be measured. It trains on the user's data; its parameters are
// discarded with it. Several can exist at once and run in turns.
#pragma once

#include <memory>
#include <optional>

#include "comm/communicator.h"
#include "comm/world.h"
#include "core/log.h"
#include "launch/program/setup/training_setup.h"
#include "launch/train/trainer.h"

namespace lockstep {

// Means per step, over a block of steps on this rank.
struct BenchBlock {
  double step_seconds = 0;
  double exposed_seconds = 0;
  double busy = 0;  // see busy_share()
};

class BenchTraining {
 public:
  // Collective, as all members. datasets: shared with another training on the same data; null: opens and
  // compares them. Makes its own communicator. Throws what Training throws.
  BenchTraining(World& world, const Config& config, const Registry& registry, const Datasets& datasets);
  BenchTraining(BenchTraining&&) = delete;

  TrainingSetup& training() { return *training_; }
  Trainer& trainer() { return *trainer_; }
  // Runs steps that are not measured, and waits for them.
  void warm_up(std::int64_t steps);
  // Starts on all ranks of `control` at the same time.
  BenchBlock block(Communicator& control, std::int64_t steps);

 private:
  World& world_;
  AllReduceWay between_nodes_;
  std::unique_ptr<Communicator> communicator_;
  std::optional<TrainingSetup> training_;
  std::optional<Trainer> trainer_;
};

// Silences logs below level error while candidates are built: they would repeat those of the user's
// configuration.
class QuietBuilds {
 public:
  QuietBuilds();
  ~QuietBuilds();
  QuietBuilds(const QuietBuilds&) = delete;
  QuietBuilds& operator=(const QuietBuilds&) = delete;

 private:
  log::Level before_;
};

// True if all ranks agree that the configuration is invalid or lacks memory: another one may work.
bool is_of_configuration(const Error& error);
// True if all ranks agree on an error with exit_code::io, such as MemoryError.
bool is_shortage(const Error& error);

}  // namespace lockstep
