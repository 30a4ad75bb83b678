// SPDX-License-Identifier: Apache-2.0
//
// release_on(): releases CUDA objects in destructors. Separate from check.h, which kernels include, because
// lockstep::log would hide CUDA's log() there.
#pragma once

#include "core/cuda/check.h"
#include "core/log.h"

namespace lockstep {

// Calls release(handle), the CUDA function called `name`, with the device current. For destructors, which
// must not throw: a failure is logged.
template <typename Release, typename Handle>
void release_on(Device device, const char* name, Release release, Handle handle) noexcept {
  cudaError_t status = set_current(device);
  if (status == cudaSuccess) status = release(handle);
  if (status != cudaSuccess && !driver_is_gone(status))
    log::error("{}: {}", name, cudaGetErrorString(status));
}

}  // namespace lockstep
