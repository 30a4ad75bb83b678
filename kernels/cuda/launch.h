// SPDX-License-Identifier: Apache-2.0
//
// launch(): the only way a kernel is started. A plain function instead of <<<>>>, so that any C++ compiler
// can read the .cu files: a test builds them for the CPU against headers that emulate CUDA's.
#pragma once

#include <cstdint>
#include <utility>

#include <cuda_runtime.h>

#include "core/cuda/check.h"
#include "core/stream.h"

namespace lockstep {

inline constexpr int kWarpThreads = 32;
// Threads of a block: of kernels made for this number, and where a kernel leaves it open until somebody
// changes it.
inline constexpr int kBlockThreads = 256;
inline constexpr int kMostBlockThreads = 512;

struct LaunchShape {
  dim3 grid;   // blocks
  dim3 block;  // threads of each
  std::size_t shared_bytes = 0;
};

// Threads of a block where a kernel leaves their number open. Whole warps, at most kMostBlockThreads; for the
// whole process. Results do not depend on it.
int block_threads();
void set_block_threads(int threads);

// How many blocks of kBlockThreads give every multiprocessor of the device two rounds of work: more blocks of
// a kernel whose threads loop would only begin and end more often. For kernels whose results do not depend on
// their number. The device is asked once.
std::int64_t enough_blocks(Device device);

inline std::string describe(const LaunchShape& shape) {
  return fmt::format("{}x{}x{} blocks of {}x{}x{} threads with {} bytes", shape.grid.x, shape.grid.y,
                     shape.grid.z, shape.block.x, shape.block.y, shape.block.z, shape.shared_bytes);
}

// Enqueues kernel(arguments...) on the stream's device. Throws Error when CUDA refuses the shape.
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
