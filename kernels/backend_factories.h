// SPDX-License-Identifier: Apache-2.0
//
// The backends behind backend_for. The link decides whether the CUDA one is there or kernels/no_cuda's, which
// throws.
#pragma once

#include "kernels/backend.h"

namespace lockstep::detail {

Backend& cpu_backend();
Backend& cuda_backend(Device device);
bool has_cuda_backend();

}  // namespace lockstep::detail
