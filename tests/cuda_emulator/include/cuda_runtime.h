// SPDX-License-Identifier: Apache-2.0
//
// Replaces CUDA's header of this name: the language extensions for device code, implemented by the emulator.
// A kernel that uses another operation does not compile. Floating-point atomics are missing on purpose,
// because their order, and hence the result, changes from run to run.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <cuda_runtime_api.h>

#include "tests/cuda_emulator/emulator.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
// Each host thread that runs kernels has one copy; the emulator fills it with NaNs before each block.
#define __shared__ thread_local

using dim3 = ::lockstep::emulator::Size3;

namespace lockstep::emulator {

// threadIdx, blockIdx and so on: objects that look up their value when they are read.
template <Size3 Position::*kWhich, unsigned Size3::*kCoordinate>
struct Coordinate {
  __forceinline__ operator unsigned() const { return position().*kWhich.*kCoordinate; }
};
template <Size3 Position::*kWhich>
struct Coordinates {
  Coordinate<kWhich, &Size3::x> x;
  Coordinate<kWhich, &Size3::y> y;
  Coordinate<kWhich, &Size3::z> z;

  operator Size3() const { return position().*kWhich; }
};

}  // namespace lockstep::emulator

inline constexpr ::lockstep::emulator::Coordinates<&::lockstep::emulator::Position::thread> threadIdx;
inline constexpr ::lockstep::emulator::Coordinates<&::lockstep::emulator::Position::block> blockIdx;
inline constexpr ::lockstep::emulator::Coordinates<&::lockstep::emulator::Position::block_size> blockDim;
inline constexpr ::lockstep::emulator::Coordinates<&::lockstep::emulator::Position::grid> gridDim;

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

enum cudaLaunchAttributeID {
  cudaLaunchAttributeIgnore = 0,
  cudaLaunchAttributeAccessPolicyWindow = 1,
  cudaLaunchAttributeCooperative = 2,
  cudaLaunchAttributeSynchronizationPolicy = 3,
  cudaLaunchAttributeClusterDimension = 4,
  cudaLaunchAttributeClusterSchedulingPolicyPreference = 5,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6,
  cudaLaunchAttributeProgrammaticEvent = 7,
  cudaLaunchAttributePriority = 8,
  cudaLaunchAttributeMemSyncDomainMap = 9,
  cudaLaunchAttributeMemSyncDomain = 10,
  cudaLaunchAttributePreferredClusterDimension = 11,
  cudaLaunchAttributeLaunchCompletionEvent = 12,
  cudaLaunchAttributeDeviceUpdatableKernelNode = 13,
  cudaLaunchAttributePreferredSharedMemoryCarveout = 14,
  cudaLaunchAttributeNvlinkUtilCentricScheduling = 16,
};
// Values of the attributes that the emulator accepts with some value.
union cudaLaunchAttributeValue {
  char pad[64];
  int cooperative;
  struct {
    unsigned x, y, z;
  } clusterDim;
  int programmaticStreamSerializationAllowed;
  int priority;
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  char pad[8 - sizeof(cudaLaunchAttributeID)];
  cudaLaunchAttributeValue val;
};

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

extern "C" cudaError_t cudaFuncGetName(const char** name, const void* kernel);

namespace lockstep::emulator {

// Enqueues a kernel with bound arguments in the configuration's stream. Refuses launches that a GPU or the
// emulator does not support; a KernelError breaks the device when the kernel runs.
cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> thread);

template <typename... Parameters>
cudaError_t launch_with(const cudaLaunchConfig_t& config, void (*kernel)(Parameters...),
                        Parameters... parameters) {
  static_assert((std::is_trivially_copyable_v<Parameters> && ...),
                "parameters are copied to the device as bytes");
  return launch(config, reinterpret_cast<const void*>(kernel),
                [kernel, bound = std::tuple<Parameters...>(parameters...)] { std::apply(kernel, bound); });
}

}  // namespace lockstep::emulator

// The arguments are copied into the kernel's parameters before this returns.
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  if (config == nullptr || kernel == nullptr) return cudaErrorInvalidValue;
  return ::lockstep::emulator::launch_with<Parameters...>(*config, kernel,
                                                          std::forward<Arguments>(arguments)...);
}
using lockstep::emulator::Site;

inline void __syncthreads(Site site = Site::current()) { lockstep::emulator::barrier(0, site); }
inline int __syncthreads_or(int predicate, Site site = Site::current()) {
  return lockstep::emulator::barrier(predicate, site) > 0 ? 1 : 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, Site site = Site::current()) {
  lockstep::emulator::warp_barrier(mask, site);
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

// Returns the value of the lane that choose(lane, first lane of its segment, one past the last) returns. A
// negative result selects the own lane.
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

// Integers only. Kernels of several streams and atomics of the host may access the same address.
template <typename T, typename Change>
T lockstep_atomic(T* place, Change change) {
  static_assert(std::is_integral_v<T>, "floating-point atomics give different bits in every run");
  lockstep::emulator::before_atomic(place);
  const std::atomic_ref<T> value(*place);
  T old = value.load(std::memory_order_relaxed);
  while (!value.compare_exchange_weak(old, change(old), std::memory_order_relaxed)) {
  }
  lockstep::emulator::after_atomic(place);
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
inline void __threadfence() { lockstep::emulator::fence(); }

inline int max(int a, int b) { return a > b ? a : b; }
inline int min(int a, int b) { return a < b ? a : b; }
