// SPDX-License-Identifier: Apache-2.0
//
// How every collective subcommand starts: each rank reads the configuration it was given, and all go on with
// the same one, or stop together.
#pragma once

#include <optional>

#include "comm/communicator.h"
#include "launch/commands/command_line.h"
#include "launch/config/config.h"

namespace lockstep {

// Collective. Returns nothing when the configuration was only to be printed, which is done then. Throws
// agreed errors: what load_config throws, ConfigError for ranks that were told different things, and IoError
// for files that could not be written at the end.
// finds_batch: the command goes on with train.batch = "auto"; else that is a ConfigError.
struct AgreedConfigOptions {
  bool finds_batch = false;
};
std::optional<Config> agreed_config(Communicator& communicator, const Command& command,
                                    const AgreedConfigOptions& options = {});

}  // namespace lockstep
