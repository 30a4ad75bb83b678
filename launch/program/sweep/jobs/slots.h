// SPDX-License-Identifier: Apache-2.0
//
// The number of trainings of a sweep that run at once on this machine, and the cores and GPUs of each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launch/program/sweep/plan.h"

namespace lockstep {

struct SweepSlots {
  std::int64_t count = 1;
  std::int64_t threads = 1;  // of each rank
  // CUDA_VISIBLE_DEVICES of each slot; empty: trainings use CPUs, or share the GPUs.
  std::vector<std::string> devices = {};
};

// The resources that a sweep distributes.
struct SweepResources {
  std::int64_t cores = 1;
  std::vector<std::string> gpus = {};  // as CUDA_VISIBLE_DEVICES names them
};

// The cores that this process may use, and its visible GPUs that no other job has claimed.
SweepResources sweep_resources();

// Throws ConfigError where plan.jobs trainings (at least one) need more GPUs than there are.
SweepSlots deal_slots(const SweepPlan& plan, const SweepResources& resources);

}  // namespace lockstep
