// SPDX-License-Identifier: Apache-2.0
//
// How many trainings of a sweep this machine has room for at once, and what each of them gets of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launch/sweep/plan.h"

namespace lockstep {

struct SweepSlots {
  std::int64_t count = 1;
  std::int64_t threads = 1;  // of each rank
  // CUDA_VISIBLE_DEVICES of each slot; empty: trainings compute on CPUs, or share what there is.
  std::vector<std::string> devices = {};
};

// What a sweep has to deal out.
struct SweepResources {
  std::int64_t cores = 1;
  std::vector<std::string> gpus = {};  // as CUDA_VISIBLE_DEVICES names them
};

// Of this process: the cores that it may use, and the GPUs that it sees and no other job has.
SweepResources sweep_resources();

// Throws ConfigError where a training needs more GPUs than there are.
SweepSlots deal_slots(const SweepPlan& plan, const SweepResources& resources);

}  // namespace lockstep
