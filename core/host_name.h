// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep {

// What this machine, or its network namespace, is called; "unknown" where the system does not tell.
std::string host_name();

}  // namespace lockstep
