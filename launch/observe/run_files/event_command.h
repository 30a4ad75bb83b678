// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace lockstep {

// Environment variable with the command to run if run.event_command is not set.
inline constexpr const char* kEventCommandVariable = "LOCKSTEP_EVENT_COMMAND";

// Replaces a secret value wherever a configuration is written.
inline constexpr const char* kRedacted = "redacted";

// The output of the commands, in run.dir.
inline constexpr const char* kEventCommandLog = "event_command.log";

// Runs a user's command by sh, with the event, a JSON object, in LOCKSTEP_EVENT. Does not wait for its end.
// Its output is appended to the file `log`, or dropped if that cannot be opened: mpirun waits for processes
// that have the output of a rank. Returns 0 or an errno value.
int tell_command(const std::string& command, const std::string& event, const std::filesystem::path& log);

}  // namespace lockstep
