// SPDX-License-Identifier: Apache-2.0
#include "launch/training_length.h"

namespace lockstep {

TrainingLength training_length(const Config& config, const BatchLoader& loader, std::int64_t samples) {
  const bool carries = config.loader.tail == Tail::carry;
  const std::int64_t epochs = config.trainer.epochs;
  const std::int64_t limit = config.trainer.max_steps;
  const std::int64_t all =
      carries ? epochs * samples / loader.global_batch() : epochs * loader.steps_in_epoch(0);
  if (limit == 0 || limit >= all) return {.epochs = epochs, .steps = all, .steps_of_all_epochs = all};
  const auto quotient_up = [](std::int64_t value, std::int64_t by) { return (value + by - 1) / by; };
  return {.epochs = carries ? quotient_up(limit * loader.global_batch(), samples)
                            : quotient_up(limit, loader.steps_in_epoch(0)),
          .steps = limit,
          .steps_of_all_epochs = all};
}

}  // namespace lockstep
