// SPDX-License-Identifier: Apache-2.0
#include "launch/program/plan/gpus/gpu_estimate.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/text/enum_words.h"
#include "kernels/cuda/plan.h"
#include "models/compute_roof.h"

namespace lockstep {
namespace {

// Measured on one H200 (benchmarks/results/gpu_program.json), rounded up: the CUDA context before the
// program allocates, and the memory of CUDA, cuDNN, cuBLASLt and NCCL.
constexpr std::size_t kContextBytes = 600'000'000, kLibraryBytes = 700'000'000;

std::size_t memory_bytes_of(const GpuFigures& gpu) { return static_cast<std::size_t>(gpu.gigabytes * 1e9); }

// The largest workspace that kernels may take on this GPU.
std::size_t workspace_bytes(const GpuFigures& gpu) {
  return PlanLimits::for_memory(memory_bytes_of(gpu)).workspace_bytes;
}

}  // namespace

std::size_t available_bytes(const GpuFigures& gpu) {
  const std::size_t total = memory_bytes_of(gpu), reserve = kContextBytes + kLibraryBytes + total / 64;
  return total > reserve ? total - reserve : 0;
}

Interval step_seconds(const GpuFigures& gpu, const Graph& graph, Precision precision) {
  constexpr int kTile = 8;
  const DeviceRates rates{.gigaflops = peak_tflops(gpu, precision) * 1e3,
                          .gigabytes_per_second = gpu.gigabytes_per_second};
  const ComputeRoof roof = compute_roof(graph, precision, rates, kTile);
  return {.low = roof.seconds(), .high = roof.seconds() / kReachedShare + roof.kernels * kSecondsPerKernel};
}

GpuEstimate estimate(const GpuFigures& gpu, const GpuWork& work) {
  GpuEstimate result{.gpu = &gpu, .refused = why_unsupported(gpu)};
  if (result.refused.empty() && peak_tflops(gpu, work.precision) == 0)
    result.refused = fmt::format("train.precision = {}", word_of(work.precision));
  if (!result.refused.empty()) return result;
  result.needed = work.need.total() + workspace_bytes(gpu);
  result.available = available_bytes(gpu);
  const double spare = static_cast<double>(result.available) - static_cast<double>(result.needed);
  const double further = std::floor(spare / std::max(work.bytes_per_sample, 1.0));
  const double largest =
      std::min(static_cast<double>(work.batch) + further, static_cast<double>(work.most_batch));
  result.largest_batch = std::max(static_cast<std::int64_t>(largest), std::int64_t{0});
  result.batch = std::min(work.batch, result.largest_batch);
  if (result.batch == 0) return result;
  const Interval step = step_seconds(gpu, work.graph(result.batch), work.precision);
  const auto batch = static_cast<double>(result.batch);
  result.samples_per_second = {.low = batch / step.high, .high = batch / step.low};
  const double watt_samples = gpu.watts * static_cast<double>(work.samples);
  result.epoch_joules = {.low = watt_samples / result.samples_per_second.high,
                         .high = watt_samples / result.samples_per_second.low};
  return result;
}

}  // namespace lockstep
