// SPDX-License-Identifier: Apache-2.0
#include "kernels/backend.h"

#include "kernels/backend_factories.h"

namespace lockstep {

Backend& backend_for(Device device) {
  return device.kind == DeviceKind::cpu ? detail::cpu_backend() : detail::cuda_backend(device);
}

bool has_backend(DeviceKind kind) { return kind == DeviceKind::cpu || detail::has_cuda_backend(); }

}  // namespace lockstep
