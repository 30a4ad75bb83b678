// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep {

// Names the command where no key does.
inline constexpr const char* kEventCommandVariable = "LOCKSTEP_EVENT_COMMAND";

// What stands for a secret value wherever a configuration is written.
inline constexpr const char* kRedacted = "redacted";

// Has sh run a user's command, which finds the event, a JSON object, in LOCKSTEP_EVENT. Nobody waits for its
// end, and it has none of this process's files but standard output and error. Returns 0, or the system's
// error.
int tell_command(const std::string& command, const std::string& event);

}  // namespace lockstep
