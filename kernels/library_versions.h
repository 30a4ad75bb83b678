// SPDX-License-Identifier: Apache-2.0
//
// The versions of the libraries that provide the device's kernels, for problem reports.
#pragma once

#include <string>

namespace lockstep {

// "cuDNN 9.13.0, cuBLAS 13.0.2", as loaded; empty in a build without CUDA. Needs no device and no driver.
std::string cuda_library_versions();

}  // namespace lockstep
