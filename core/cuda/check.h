// SPDX-License-Identifier: Apache-2.0
//
// CUDA_CHECK(call): throws Error naming the failing call. require_cuda_device(): for what a user may ask for.
// open_device(): before the first of anything on a device. make_current(): what every function does before it
// calls CUDA; there is no ambient device that Lockstep relies on.
#pragma once

#include <cuda_runtime_api.h>

#include "core/device.h"
#include "core/error.h"

namespace lockstep {

namespace detail {
inline void check_cuda(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // the exception carries it now; whoever checks next must not find it again
  throw Error(exit_code::failed,
              fmt::format("{}:{}: {} failed on {}: {} ({})", file, line, call, current_place(),
                          cudaGetErrorString(status), cudaGetErrorName(status)));
}
}  // namespace detail

#define CUDA_CHECK(call) ::lockstep::detail::check_cuda((call), #call, __FILE__, __LINE__)

// Throws ConfigError when there is no such device.
void require_cuda_device(Device device);

// Makes the device this thread's current one, and leaves it so: to go back to the one before would open a
// context there, half a gigabyte for each rank on the first GPU, where every thread starts.
inline cudaError_t set_current(Device device) {
  int current = 0;
  const cudaError_t status = cudaGetDevice(&current);
  return status != cudaSuccess || current == device.index ? status : cudaSetDevice(device.index);
}
inline void make_current(Device device) { CUDA_CHECK(set_current(device)); }

// Makes the device current; throws ConfigError when there is none. The first time, it tells CUDA how the host
// waits for it: by sleeping.
void open_device(Device device);

// What a destructor may see while the process ends: the driver is gone and has freed everything itself.
inline bool driver_is_gone(cudaError_t status) {
  return status == cudaErrorCudartUnloading || status == cudaErrorContextIsDestroyed;
}

}  // namespace lockstep
