// SPDX-License-Identifier: Apache-2.0
//
// In place of CUDA's header of this name: what the language adds for device code, on top of the emulator. An
// operation a kernel uses that is not here does not compile; floating-point atomics are missing on purpose,
// because their order, and with it the result, changes from run to run.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include <cuda_runtime_api.h>

#include "tests/cuda_emulator/emulator.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
// One copy for the thread that runs a launch; the emulator fills it with garbage before each block.
#define __shared__ thread_local

using dim3 = ::lockstep::emulator::Size3;

inline const ::lockstep::emulator::Size3& threadIdx = ::lockstep::emulator::thread_index;
inline const ::lockstep::emulator::Size3& blockIdx = ::lockstep::emulator::block_index;
inline const ::lockstep::emulator::Size3& blockDim = ::lockstep::emulator::block_size;
inline const ::lockstep::emulator::Size3& gridDim = ::lockstep::emulator::grid_size;

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

// A launch is done when this returns.
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  namespace emulator = ::lockstep::emulator;
  const emulator::Launch shape{config->gridDim, config->blockDim, config->dynamicSmemBytes};
  if (!emulator::allowed(shape)) return cudaErrorInvalidConfiguration;
  emulator::run(shape, [&] { kernel(arguments...); });
  return cudaSuccess;
}
inline cudaError_t cudaFuncGetName(const char** name, const void*) {
  *name = "an emulated kernel";
  return cudaSuccess;
}

using lockstep::emulator::Site;

inline void __syncthreads(Site site = Site::current()) { lockstep::emulator::barrier(0, site); }
inline int __syncthreads_or(int predicate, Site site = Site::current()) {
  return lockstep::emulator::barrier(predicate, site) > 0 ? 1 : 0;
}
inline int __syncthreads_count(int predicate, Site site = Site::current()) {
  return lockstep::emulator::barrier(predicate, site);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, Site site = Site::current()) {
  lockstep::emulator::exchange(mask, 0, site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, Site site = Site::current()) {
  const auto& values = lockstep::emulator::exchange(mask, predicate != 0 ? 1 : 0, site);
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1u) != 0 && values[lane] != 0) votes |= 1u << lane;
  }
  return votes;
}
inline int __any_sync(unsigned mask, int predicate, Site site = Site::current()) {
  return __ballot_sync(mask, predicate, site) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask, int predicate, Site site = Site::current()) {
  return __ballot_sync(mask, predicate, site) == mask ? 1 : 0;
}

namespace lockstep::emulator {

// The value of another lane; choose(lane, first lane of its segment, one past the last) names it. A lane
// outside the segment means: its own.
template <typename T, typename Choose>
T shuffle(unsigned mask, T value, int width, Site site, Choose choose) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  const auto& values = exchange(mask, bits, site);
  const int lane = lane_index();
  const int first = lane & ~(width - 1);
  int source = choose(lane, first, first + width);
  if (source < 0) source = lane;
  require_participant(mask, source, site);
  std::memcpy(&value, &values[static_cast<std::size_t>(source)], sizeof(T));
  return value;
}

}  // namespace lockstep::emulator

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, Site site = Site::current()) {
  return lockstep::emulator::shuffle(mask, value, width, site,
                                     [=](int, int first, int) { return first + (source & (width - 1)); });
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, Site site = Site::current()) {
  return lockstep::emulator::shuffle(mask, value, width, site, [=](int lane, int, int end) {
    return (lane ^ lane_mask) < end ? lane ^ lane_mask : -1;
  });
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, int delta, int width = 32, Site site = Site::current()) {
  return lockstep::emulator::shuffle(mask, value, width, site, [=](int lane, int, int end) {
    return lane + delta < end ? lane + delta : -1;
  });
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, int delta, int width = 32, Site site = Site::current()) {
  return lockstep::emulator::shuffle(mask, value, width, site, [=](int lane, int first, int) {
    return lane - delta >= first ? lane - delta : -1;
  });
}

// One thread runs at a time: an ordinary access is atomic. Integers only.
template <typename T, typename Change>
T lockstep_atomic(T* place, Change change) {
  static_assert(std::is_integral_v<T>, "floating-point atomics give other bits in every run");
  const T old = *place;
  *place = change(old);
  return old;
}
template <typename T>
T atomicAdd(T* place, T value) {
  return lockstep_atomic(place, [=](T old) { return static_cast<T>(old + value); });
}
template <typename T>
T atomicAnd(T* place, T value) {
  return lockstep_atomic(place, [=](T old) { return old & value; });
}
template <typename T>
T atomicOr(T* place, T value) {
  return lockstep_atomic(place, [=](T old) { return old | value; });
}
template <typename T>
T atomicMax(T* place, T value) {
  return lockstep_atomic(place, [=](T old) { return std::max(old, value); });
}
template <typename T>
T atomicExch(T* place, T value) {
  return lockstep_atomic(place, [=](T) { return value; });
}
inline void __threadfence() {}

inline int max(int a, int b) { return a > b ? a : b; }
inline int min(int a, int b) { return a < b ? a : b; }
