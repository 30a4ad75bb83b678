// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep {

// Environment variable with the command to run if run.event_command is not set.
inline constexpr const char* kEventCommandVariable = "LOCKSTEP_EVENT_COMMAND";

// Replaces a secret value wherever a configuration is written.
inline constexpr const char* kRedacted = "redacted";

// Runs a user's command by sh, with the event, a JSON object, in LOCKSTEP_EVENT. Does not wait for its end.
// The command inherits only standard output and error. Returns 0 or an errno value.
int tell_command(const std::string& command, const std::string& event);

}  // namespace lockstep
