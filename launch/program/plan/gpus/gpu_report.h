// SPDX-License-Identifier: Apache-2.0
//
// The report of `lockstep plan --gpu`: a row for each GPU, measured steps, sources, and what the estimates
// leave out; as text and as JSON.
#pragma once

#include <string>
#include <vector>

#include "comm/world.h"
#include "launch/program/config/config.h"
#include "launch/program/plan/gpus/gpu_estimate.h"
#include "launch/program/plan/gpus/gpu_runs.h"

namespace lockstep {

struct GpuReport {
  std::string network;
  Precision precision = Precision::fp32;
  std::int64_t batch = 0;
  std::int64_t samples = 0;
  MemoryNeed need;  // without the workspace of kernels
  std::vector<GpuEstimate> estimates;
  std::vector<GpuRun> runs;        // measured steps of this network and precision on these GPUs
  std::vector<std::string> notes;  // what the estimates leave out
};

// Plans the network with the kernels of the CPU and allocates none of it. Opens the datasets. Throws what
// TrainingSetup throws for a wrong configuration.
GpuReport plan_gpus(const std::vector<const GpuFigures*>& gpus, const Config& config,
                    const Registry& registry, const World& world);

// Lines for a terminal.
std::vector<std::string> to_lines(const GpuReport& report);
std::string to_json(const GpuReport& report);

}  // namespace lockstep
