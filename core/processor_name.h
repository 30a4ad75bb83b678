// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep {

// The model of this machine's processor, as the system tells it.
std::string processor_name();

}  // namespace lockstep
