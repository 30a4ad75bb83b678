// SPDX-License-Identifier: Apache-2.0
#include "kernels/library_versions.h"

#include <cublasLt.h>
#include <cudnn_graph.h>
#include <fmt/format.h>

namespace lockstep {
namespace {

// Both libraries report the parts of their version with the CUDA toolkit's enumerators.
template <typename GetProperty>
std::string version(GetProperty get_property) {
  int major = 0;
  int minor = 0;
  int patch = 0;
  get_property(MAJOR_VERSION, &major);
  get_property(MINOR_VERSION, &minor);
  get_property(PATCH_LEVEL, &patch);
  return fmt::format("{}.{}.{}", major, minor, patch);
}

}  // namespace

std::string cuda_library_versions() {
  return fmt::format("cuDNN {}, cuBLAS {}", version(cudnnGetProperty), version(cublasLtGetProperty));
}

}  // namespace lockstep
