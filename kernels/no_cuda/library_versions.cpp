// SPDX-License-Identifier: Apache-2.0
#include "kernels/library_versions.h"

namespace lockstep {

std::string cuda_library_versions() { return {}; }

}  // namespace lockstep
