// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace lockstep {

// Resident memory of this process; 0 if the system does not report it.
std::int64_t resident_bytes();

}  // namespace lockstep
