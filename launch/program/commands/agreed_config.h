// SPDX-License-Identifier: Apache-2.0
//
// The start of every collective subcommand: each rank reads its configuration, and all ranks continue with
// the same one or fail together.
#pragma once

#include <optional>
#include <string>

#include "comm/communicator.h"
#include "launch/program/commands/command_line.h"
#include "launch/program/config/config.h"

namespace lockstep {

// Collective. Returns nullopt if the command only prints the configuration, after printing it. Throws agreed
// errors: those of load_config, ConfigError if ranks have different configurations, --init or --print-config,
// or if a rank has a flag of a result file and rank 0 has not, UsageError if such a file would replace
// another one, the configuration or a file of the run, and IoError if it cannot be written.
// finds_batch, finds_precision: the command accepts the value "auto"; otherwise it is a ConfigError.
struct AgreedConfigOptions {
  bool finds_batch = false;
  bool finds_precision = false;
};
std::optional<Config> agreed_config(Communicator& communicator, const Command& command,
                                    const AgreedConfigOptions& options = {});

// Checks before the first step that a result can be written, so that a long run does not end in an error.
// Throws IoError. path: empty for none.
void require_writable(const std::string& path);

// Throws ConfigError if train.batch or train.precision is "auto" and not accepted. command: its name.
void refuse_auto(const Config& config, const std::string& command, const AgreedConfigOptions& accepted = {});

// Collective. Throws an agreed ConfigError if a rank's command has other flags than rank 0's. flags: those
// that all ranks use, as text.
void require_same_flags(Communicator& communicator, const std::string& flags);

}  // namespace lockstep
