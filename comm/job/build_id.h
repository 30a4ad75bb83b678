// SPDX-License-Identifier: Apache-2.0
//
// The identity of this Lockstep build. Ranks exchange memory in their program's own layout and order, so all
// ranks must run the same build.
#pragma once

#include <string>

#include "comm/job/launcher.h"

namespace lockstep {

namespace detail {
extern const char* const kSourceHash;  // "0.1.0-0123456789abcdef"
}

// Version and hash of all library sources. The variable LOCKSTEP_BUILD_ID overrides it for tests. At most 63
// characters.
std::string build_id(const Environment& environment);

}  // namespace lockstep
