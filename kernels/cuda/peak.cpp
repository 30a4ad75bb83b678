// SPDX-License-Identifier: Apache-2.0
//
// What the device can do at best: a copy of large memory, and large products of matrices.
#include <algorithm>

#include "core/buffer.h"
#include "kernels/cuda/linear_plan.h"
#include "kernels/cuda/products.h"
#include "kernels/cuda/timing.h"

namespace lockstep {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{512} << 20;
constexpr std::int64_t kSize = 8192;  // of square matrices
constexpr std::int64_t kSizeInBrief = 4096;

double gigabytes_per_second(Device device) {
  CudaStopwatch stopwatch(device);
  const Buffer from = random_memory(stopwatch.stream(), kCopyBytes, DType::f32);
  const Buffer to(kCopyBytes, device);
  const double time =
      stopwatch.microseconds([&] { stopwatch.stream().copy(to.data(), from.data(), kCopyBytes); });
  return 2e-3 * static_cast<double>(kCopyBytes) / time;
}

// The best of what cuBLASLt proposes.
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
          .gigabytes_per_second = gigabytes_per_second(libraries.device())};
}

double measure_cuda_gigaflops(CudaLibraries& libraries, DType type, bool tf32) {
  return gigaflops(libraries, kSizeInBrief, type, tf32);
}

}  // namespace lockstep
