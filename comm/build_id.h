// SPDX-License-Identifier: Apache-2.0
//
// Which Lockstep this is. Ranks exchange memory as their program lays it out, in the order in which it comes
// to it: only the same program on both sides understands it.
#pragma once

#include <string>

#include "comm/launcher.h"

namespace lockstep {

namespace detail {
extern const char* const kSourceHash;  // "0.1.0-0123456789abcdef"
}

// The version and a hash of all sources of the libraries, or what the variable LOCKSTEP_BUILD_ID says, which
// is for tests. At most 63 characters.
std::string build_id(const Environment& environment);

}  // namespace lockstep
