// SPDX-License-Identifier: Apache-2.0
//
// The length of a training: all epochs, or fewer by train.steps and train.until_epoch.
#pragma once

#include <cstdint>

#include "data/batch_loader.h"
#include "launch/program/config/config.h"

namespace lockstep {

struct TrainingLength {
  std::int64_t epochs = 0;               // that training begins
  std::int64_t steps = 0;                // optimizer steps
  std::int64_t steps_of_all_epochs = 0;  // without limits by train.steps or train.until_epoch
  std::int64_t steps_of_schedule = 0;    // for the schedule; ignores train.until_epoch
};

// With this many samples per step over all ranks, of the loader's dataset.
TrainingLength training_length(const Config& config, const BatchLoader& loader, std::int64_t global_batch);

}  // namespace lockstep
