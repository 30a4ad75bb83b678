// SPDX-License-Identifier: Apache-2.0
//
// How far training goes: all epochs, or as much of them as train.steps and train.until_epoch allow.
#pragma once

#include <cstdint>

#include "data/batch_loader.h"
#include "launch/config/config.h"

namespace lockstep {

struct TrainingLength {
  std::int64_t epochs = 0;               // that are begun
  std::int64_t steps = 0;                // optimizer steps
  std::int64_t steps_of_all_epochs = 0;  // whatever train.steps says
  std::int64_t steps_of_schedule = 0;  // that the learning rate reckons with, whatever train.until_epoch says
};

// With a loader of so many samples.
TrainingLength training_length(const Config& config, const BatchLoader& loader, std::int64_t samples);

}  // namespace lockstep
