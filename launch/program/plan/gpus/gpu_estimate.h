// SPDX-License-Identifier: Apache-2.0
//
// Estimates of a training on a GPU that is not present: memory by the network's plan, samples per second by
// its roofline and published figures.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "launch/program/devices/memory_need.h"
#include "launch/program/plan/gpus/gpu_table.h"
#include "models/graph.h"
#include "models/precision.h"

namespace lockstep {

// The training that is estimated. Planned memory grows with the batch along a line.
struct GpuWork {
  std::function<Graph(std::int64_t batch)> graph;  // of a micro-batch
  Precision precision = Precision::fp32;
  std::int64_t batch = 0;       // configured micro-batch
  std::int64_t most_batch = 0;  // largest that the training set allows
  std::int64_t samples = 0;     // of an epoch
  MemoryNeed need;              // for `batch`, without the workspace of kernels
  double bytes_per_sample = 0;  // more for each further sample
};

struct Interval {
  double low = 0;
  double high = 0;
};

struct GpuEstimate {
  const GpuFigures* gpu = nullptr;
  std::string refused;             // why there is no estimate; the members below are then 0
  std::size_t needed = 0;          // bytes for the configured batch
  std::size_t available = 0;       // bytes
  std::int64_t largest_batch = 0;  // that fits, up to most_batch; 0: none
  std::int64_t batch = 0;          // of the rates: the configured one, or largest_batch if that is smaller
  Interval samples_per_second;
  Interval epoch_joules;  // at the board's maximum power

  bool fits() const { return needed > 0 && needed <= available; }
};

// With this share of the roofline, and this time beyond it for each kernel, no step that was measured on an
// H200 (gpu_runs.h) is slower than step_seconds(), and one reaches it within 2 %.
inline constexpr double kReachedShare = 0.42;
inline constexpr double kSecondsPerKernel = 31e-6;

// Memory for the training: without the context, libraries and what rounding takes.
std::size_t available_bytes(const GpuFigures& gpu);

// Seconds of a micro-batch without the optimizer. Low: each layer takes the longer one of its products and
// its memory traffic, at the published peaks. High: with the share and the time of each kernel above.
Interval step_seconds(const GpuFigures& gpu, const Graph& graph, Precision precision);

GpuEstimate estimate(const GpuFigures& gpu, const GpuWork& work);

}  // namespace lockstep
