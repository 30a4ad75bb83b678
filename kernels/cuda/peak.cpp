// SPDX-License-Identifier: Apache-2.0
//
// Measures the device's peak rates: a large copy, and products of large matrices.
#include <algorithm>

#include "core/tensor/buffer.h"
#include "kernels/cuda/linear_plan.h"
#include "kernels/cuda/products.h"
#include "kernels/cuda/timing.h"

namespace lockstep {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{512} << 20;
constexpr std::size_t kCopyBytesInBrief = std::size_t{64} << 20;
constexpr std::int64_t kSize = 8192;  // rows and columns
constexpr std::int64_t kSizeInBrief = 4096;

double copied_per_second(Device device, std::size_t bytes) {
  CudaStopwatch stopwatch(device);
  const Buffer from = random_memory(stopwatch.stream(), bytes, DType::f32);
  const Buffer to(bytes, device);
  const double time = stopwatch.microseconds([&] { stopwatch.stream().copy(to.data(), from.data(), bytes); });
  return 2e-3 * static_cast<double>(bytes) / time;
}

// The rate of the fastest of cuBLASLt's proposals, in 10^9 operations per second.
double gigaflops(CudaLibraries& libraries, std::int64_t size, DType type, bool tf32 = false) {
  const LinearShape shape{
      .batch = size, .in_features = size, .out_features = size, .bias = false, .tf32 = tf32};
  KernelChoices choices(ChooseBy::time);
  const auto matrix_bytes = static_cast<std::size_t>(size * size) * size_of(type);
  const auto kernel = make_cuda_linear(libraries, shape, Layout({size, size}, type), choices);
  CudaStopwatch stopwatch(libraries.device());
  const Buffer x = random_memory(stopwatch.stream(), matrix_bytes, type);
  const Buffer w = random_memory(stopwatch.stream(), matrix_bytes, type);
  const Buffer y(matrix_bytes, libraries.device());
  const Buffer scratch(std::max<std::size_t>(kernel->scratch_bytes(), 1), libraries.device());
  const double time = stopwatch.microseconds(
      [&] { kernel->forward(stopwatch.stream(), x.data(), w.data(), nullptr, y.data(), scratch.data()); });
  return 2e-3 * static_cast<double>(size * size) * static_cast<double>(size) / time;
}

}  // namespace

Peak measure_cuda_peak(CudaLibraries& libraries) {
  return {.gigaflops = gigaflops(libraries, kSize, DType::f32),
          .tf32_gigaflops = gigaflops(libraries, kSize, DType::f32, true),
          .half_gigaflops = gigaflops(libraries, kSize, DType::f16),
          .gigabytes_per_second = copied_per_second(libraries.device(), kCopyBytes)};
}

double measure_cuda_gigaflops(CudaLibraries& libraries, DType type, bool tf32) {
  return gigaflops(libraries, kSizeInBrief, type, tf32);
}

double measure_cuda_gigabytes_per_second(CudaLibraries& libraries) {
  return copied_per_second(libraries.device(), kCopyBytesInBrief);
}

}  // namespace lockstep
