// SPDX-License-Identifier: Apache-2.0
//
// CUDA_CHECK(call): throws Error naming the failing call. require_cuda_device(): for what a user may ask for.
// DeviceGuard: makes a device current for a scope; there is no
// ambient current device in Lockstep.
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

class DeviceGuard {
 public:
  explicit DeviceGuard(Device device) {
    CUDA_CHECK(cudaGetDevice(&previous_));
    CUDA_CHECK(cudaSetDevice(device.index));
  }
  ~DeviceGuard() {
    cudaSetDevice(previous_);
  }  // fails only while the driver shuts down: nothing to restore then
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
};

// What a destructor may see while the process ends: the driver is gone and has freed everything itself.
inline bool driver_is_gone(cudaError_t status) {
  return status == cudaErrorCudartUnloading || status == cudaErrorContextIsDestroyed;
}

}  // namespace lockstep
