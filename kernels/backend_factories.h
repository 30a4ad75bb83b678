// SPDX-License-Identifier: Apache-2.0
//
// The backends that backend_for returns. The link decides whether cuda_backend is the CUDA one or that of
// kernels/no_cuda, which throws.
#pragma once

#include "kernels/backend.h"

namespace lockstep::detail {

Backend& cpu_backend();
Backend& cuda_backend(Device device);
bool has_cuda_backend();

}  // namespace lockstep::detail
