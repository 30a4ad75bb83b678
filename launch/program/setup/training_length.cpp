// SPDX-License-Identifier: Apache-2.0
#include "launch/program/setup/training_length.h"

#include <algorithm>

namespace lockstep {

TrainingLength training_length(const Config& config, const BatchLoader& loader, std::int64_t samples) {
  const bool carries = config.loader.tail == Tail::carry;
  const std::int64_t epochs = config.trainer.epochs;
  const std::int64_t limit = config.trainer.max_steps;
  const auto steps_of = [&](std::int64_t of_epochs) {
    return carries ? of_epochs * samples / loader.global_batch() : of_epochs * loader.steps_in_epoch(0);
  };
  const auto quotient_up = [](std::int64_t value, std::int64_t by) { return (value + by - 1) / by; };
  const std::int64_t all = steps_of(epochs);
  TrainingLength length{.epochs = epochs, .steps = all, .steps_of_all_epochs = all, .steps_of_schedule = all};
  if (limit > 0 && limit < all) {
    length.epochs = carries ? quotient_up(limit * loader.global_batch(), samples)
                            : quotient_up(limit, loader.steps_in_epoch(0));
    length.steps = length.steps_of_schedule = limit;
  }
  if (const std::int64_t until = config.trainer.until_epoch; until > 0 && until < length.epochs) {
    length.epochs = until;
    length.steps = std::min(length.steps, steps_of(until));
  }
  return length;
}

}  // namespace lockstep
