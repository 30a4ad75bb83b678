// SPDX-License-Identifier: Apache-2.0
//
// What batches are worth to the network: the fastest is not always the best. Each is trained from the same
// start, once for as many epochs and once for as many steps as all others.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/world.h"
#include "launch/config/config.h"
#include "launch/find_batch/recommendation.h"

namespace lockstep {

struct BatchAccuracy {
  std::int64_t batch = 0;
  double learning_rate = 0;  // by the rule
  std::int64_t epochs = 0, steps_of_epochs = 0;
  double of_epochs = 0;  // test accuracy, a fraction
  std::int64_t steps = 0;
  double of_steps = 0;
  std::string problem = {};  // of a training that could not be ended; what it would have reached is 0
};

// Collective, and the same on every rank. steps: of the configured batch in so many epochs. begins: told of
// each training.
std::vector<BatchAccuracy> compare_accuracy(World& world, const Config& config, const Registry& registry,
                                            const std::vector<std::int64_t>& batches,
                                            const AsConfigured& configured, std::int64_t epochs,
                                            const std::function<void(const std::string& what)>& begins);

}  // namespace lockstep
