// SPDX-License-Identifier: Apache-2.0
#include "launch/program/setup/training_length.h"

#include <algorithm>

namespace lockstep {

TrainingLength training_length(const Config& config, const BatchLoader& loader, std::int64_t global_batch) {
  const bool carries = config.loader.tail == Tail::carry;
  const std::int64_t epochs = config.trainer.epochs;
  const std::int64_t limit = config.trainer.max_steps;
  const auto steps_of = [&](std::int64_t of_epochs) { return loader.steps_before(of_epochs, global_batch); };
  const auto quotient_up = [](std::int64_t value, std::int64_t by) { return (value + by - 1) / by; };
  const std::int64_t all = steps_of(epochs);
  TrainingLength length{.epochs = epochs, .steps = all, .steps_of_all_epochs = all, .steps_of_schedule = all};
  if (limit > 0 && limit < all) {
    length.epochs = carries ? quotient_up(limit * global_batch, loader.dataset().size())
                            : quotient_up(limit, steps_of(1));
    length.steps = length.steps_of_schedule = limit;
  }
  if (const std::int64_t until = config.until_epoch; until > 0 && until < length.epochs) {
    length.epochs = until;
    length.steps = std::min(length.steps, steps_of(until));
  }
  return length;
}

}  // namespace lockstep
