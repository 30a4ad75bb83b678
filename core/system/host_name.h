// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep {

// The host name of this machine or network namespace; "unknown" if the system does not report one.
std::string host_name();

}  // namespace lockstep
