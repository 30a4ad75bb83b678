// SPDX-License-Identifier: Apache-2.0
//
// Compares the test accuracy of batches: the fastest batch is not always the best. Each batch is trained from
// the same start, once for equal epochs and once for equal steps.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/world.h"
#include "launch/program/config/config.h"
#include "launch/program/find_batch/recommendation.h"

namespace lockstep {

struct BatchAccuracy {
  std::int64_t batch = 0;
  double learning_rate = 0;  // AsConfigured::rate_for() of its global batch
  std::int64_t epochs = 0, steps_of_epochs = 0;
  double of_epochs = 0;  // test accuracy, a fraction
  std::int64_t steps = 0;
  double of_steps = 0;
  std::string problem = {};  // the error of a training that failed; the accuracies are 0 then
};

// Collective; the same result on every rank, ascending by batch. Trains each batch for `epochs`, and for as
// many steps as that took with the reference: the first of `batches` that can be trained. Calls begins()
// before each training.
std::vector<BatchAccuracy> compare_accuracy(World& world, const Config& config, const Registry& registry,
                                            const std::vector<std::int64_t>& batches,
                                            const AsConfigured& configured, std::int64_t epochs,
                                            const std::function<void(const std::string& what)>& begins);

}  // namespace lockstep
