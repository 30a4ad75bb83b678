// SPDX-License-Identifier: Apache-2.0
//
// Linked in place of kernels/cuda in builds without CUDA.
#include "core/error.h"
#include "kernels/backend_factories.h"

namespace lockstep {

Backend& detail::cuda_backend(Device device) {
  throw ConfigError(fmt::format("{}: this build has no CUDA kernels; use --device cpu", to_string(device)));
}

bool detail::has_cuda_backend() { return false; }

}  // namespace lockstep
