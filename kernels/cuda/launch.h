// SPDX-License-Identifier: Apache-2.0
//
// launch(): starts a kernel; no kernel is started in another way. It is a plain function instead of <<<>>>,
// so that any C++ compiler can compile the .cu files: a test compiles them for the CPU with headers that
// emulate CUDA's.
#pragma once

#include <cstdint>
#include <utility>

#include <cuda_runtime.h>

#include "core/cuda/check.h"
#include "core/stream.h"

namespace lockstep {

inline constexpr int kWarpThreads = 32;
// Threads per block of kernels that are written for this number, and the default of block_threads().
inline constexpr int kBlockThreads = 256;
inline constexpr int kMostBlockThreads = 512;

struct LaunchShape {
  dim3 grid;   // blocks
  dim3 block;  // threads per block
  std::size_t shared_bytes = 0;
};

// Threads per block of kernels that leave the number open: a multiple of a warp, at most kMostBlockThreads.
// Applies to the whole process. Results do not depend on it.
int block_threads();
void set_block_threads(int threads);

// The number of blocks of kBlockThreads that gives every multiprocessor of the device two rounds of work. A
// kernel whose threads loop gains nothing from more blocks: they only start and end more often. For kernels
// whose results do not depend on the number of blocks. The device is queried once.
std::int64_t enough_blocks(Device device);

inline std::string describe(const LaunchShape& shape) {
  return fmt::format("{}x{}x{} blocks of {}x{}x{} threads with {} bytes", shape.grid.x, shape.grid.y,
                     shape.grid.z, shape.block.x, shape.block.y, shape.block.z, shape.shared_bytes);
}

// Enqueues kernel(arguments...) on the stream. Throws Error if CUDA rejects the launch.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, Stream& stream,
            Arguments&&... arguments) {
  make_current(stream.device());
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream.native());
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
  if (status == cudaSuccess) return;
  const char* name = nullptr;
  if (cudaFuncGetName(&name, reinterpret_cast<const void*>(kernel)) != cudaSuccess) name = "a kernel";
  detail::check_cuda(
      status,
      fmt::format("launch of {} as {} on {}", name, describe(shape), to_string(stream.device())).c_str(),
      __FILE__, __LINE__);
}

}  // namespace lockstep
