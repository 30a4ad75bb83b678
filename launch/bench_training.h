// SPDX-License-Identifier: Apache-2.0
//
// BenchTraining: a configuration that is built to be measured. It trains on the user's data, and what it
// trained goes with it. Several may be built at once, and take turns.
#pragma once

#include <memory>
#include <optional>

#include "comm/communicator.h"
#include "comm/world.h"
#include "core/log.h"
#include "launch/trainer.h"
#include "launch/training.h"

namespace lockstep {

// Of a stretch of steps, on this rank: the mean of a step.
struct BenchBlock {
  double step_seconds = 0;
  double exposed_seconds = 0;
  double busy = 0;  // see busy_share()
};

class BenchTraining {
 public:
  // Collective, as everything here. datasets: of another training on the same data; null: opened and
  // compared. Each has a communicator of its own. Throws what Training throws.
  BenchTraining(World& world, const Config& config, const Registry& registry, const Datasets& datasets);
  BenchTraining(BenchTraining&&) = delete;

  Training& training() { return *training_; }
  Trainer& trainer() { return *trainer_; }
  // Steps that nobody measures; waits for them.
  void warm_up(std::int64_t steps);
  // All ranks of `control` begin together.
  BenchBlock block(Communicator& control, std::int64_t steps);

 private:
  World& world_;
  AllReduceWay between_nodes_;
  std::unique_ptr<Communicator> communicator_;
  std::optional<Training> training_;
  std::optional<Trainer> trainer_;
};

// What every candidate says again was said of the configuration as it is.
class QuietBuilds {
 public:
  QuietBuilds();
  ~QuietBuilds();
  QuietBuilds(const QuietBuilds&) = delete;
  QuietBuilds& operator=(const QuietBuilds&) = delete;

 private:
  log::Level before_;
};

// Whether all ranks found that a configuration cannot be built, or has no room: another may be.
bool is_of_configuration(const Error& error);
// Of these, that it has no room.
bool is_shortage(const Error& error);

}  // namespace lockstep
