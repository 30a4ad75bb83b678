// SPDX-License-Identifier: Apache-2.0
//
// Sums over the threads of a warp or of a block, in a fixed order: the same bits in every run.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"

namespace lockstep {

inline constexpr unsigned kWholeWarp = 0xffffffffu;

// Returns the sum in every lane. All lanes of the warp must call it.
template <typename T>
__device__ inline T warp_sum(T value) {
#pragma unroll
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kWholeWarp, value, distance);
  }
  return value;
}

// Returns the sum in every thread. All threads of the block must call it; the block is one-dimensional and
// consists of whole warps.
template <typename T>
__device__ inline T block_sum(T value) {
  __shared__ T partial[kWarpThreads];
  const T mine = warp_sum(value);
  if (threadIdx.x % kWarpThreads == 0) partial[threadIdx.x / kWarpThreads] = mine;
  __syncthreads();
  T sum = partial[0];
  for (unsigned warp = 1; warp < blockDim.x / kWarpThreads; ++warp) sum += partial[warp];
  __syncthreads();  // before the next call writes
  return sum;
}

}  // namespace lockstep
