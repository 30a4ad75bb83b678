// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep {

// The processor's model name from /proc/cpuinfo.
std::string processor_name();

}  // namespace lockstep
