// SPDX-License-Identifier: Apache-2.0
//
// Measured training steps on real GPUs, quoted from benchmarks/results.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/graph.h"
#include "models/precision.h"

namespace lockstep {

struct GpuRun {
  std::string_view gpu;      // GpuFigures::name
  std::string_view network;  // on images of side x side x 3
  std::int64_t side = 0;
  std::int64_t classes = 0;
  Precision precision = Precision::fp32;
  std::int64_t batch = 0;
  double samples_per_second = 0;  // rounded to 0.1
  std::string_view file;          // in benchmarks/results
  std::string_view pointer;       // JSON pointer to samples_per_second
  double watts = 0;               // mean, rounded to 0.1; beside samples_per_second; 0: not measured
};

std::span<const GpuRun> gpu_runs();

// The run's graph.
Graph graph_of(const GpuRun& run);

// The runs of this network, precision and image size, with the same operations per sample, on a GPU.
std::vector<GpuRun> find_runs(std::string_view gpu, const std::string& network, const Graph& graph,
                              Precision precision);

}  // namespace lockstep
