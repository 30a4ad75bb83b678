// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep {

// The root of the source tree.
std::string source_folder();

}  // namespace lockstep
