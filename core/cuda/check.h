// SPDX-License-Identifier: Apache-2.0
//
// CUDA_CHECK(call) throws Error that names the failing call. require_cuda_device() checks a device that the
// user selected. open_device() must be called before the first use of a device, make_current() before every
// CUDA call: Lockstep does not rely on an ambient current device.
#pragma once

#include <cuda_runtime_api.h>

#include "core/device.h"
#include "core/error.h"

namespace lockstep {

namespace detail {
inline void check_cuda(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears the error: the exception reports it
  throw Error(exit_code::failed,
              fmt::format("{}:{}: {} failed on {}: {} ({})", file, line, call, current_place(),
                          cudaGetErrorString(status), cudaGetErrorName(status)));
}
}  // namespace detail

#define CUDA_CHECK(call) ::lockstep::detail::check_cuda((call), #call, __FILE__, __LINE__)

// Throws ConfigError if there is no such device.
void require_cuda_device(Device device);

// Makes the device the calling thread's current one and does not restore the previous one: restoring it would
// create a context on the first GPU, where every thread starts, and each rank's context takes half a
// gigabyte.
inline cudaError_t set_current(Device device) {
  int current = 0;
  const cudaError_t status = cudaGetDevice(&current);
  return status != cudaSuccess || current == device.index ? status : cudaSetDevice(device.index);
}
inline void make_current(Device device) { CUDA_CHECK(set_current(device)); }

// Makes the device current. The first call for a device selects blocking synchronization: a host thread that
// waits for the device sleeps. Throws ConfigError if there is no such device.
void open_device(Device device);

// True for the errors that a destructor can get while the process exits: the driver has shut down and has
// freed everything.
inline bool driver_is_gone(cudaError_t status) {
  return status == cudaErrorCudartUnloading || status == cudaErrorContextIsDestroyed;
}

}  // namespace lockstep
