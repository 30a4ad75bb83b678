// SPDX-License-Identifier: Apache-2.0
//
// The subcommands. Each stands in a file of its own, as a CommandEntry, which commands.cpp lists; a program
// of one's own adds its commands to the Registry.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "comm/world.h"
#include "launch/commands/command_help.h"
#include "launch/commands/command_line.h"

namespace CLI {
class App;
}

namespace lockstep {

struct CommandEntry {
  std::string_view name;
  std::string_view description;
  std::string_view example;  // a line each
  // Binds arguments and flags to the command's members; null: there are none.
  void (*flags)(CLI::App& app, Command& command) = nullptr;
  // What it does; one of these is set. They return the exit code or throw.
  int (*in_world)(const Command& command, World& world) = nullptr;  // collective
  int (*alone)(const Command& command) = nullptr;                   // every process by itself
  // What rank 0 is to print, out of what is known of all commands. Touches neither files nor MPI.
  std::string (*text)(const Command& command, std::span<const CommandHelp> commands) = nullptr;
  bool lists_keys = false;  // its help ends with the keys of the configuration
};

// What several commands have: a configuration, of those that read one; flags beside it, of those that build a
// training, and of those that can trace it.
void add_configuration_flags(CLI::App& app, Command& command);
void add_training_flags(CLI::App& app, Command& command);
void add_trace_flag(CLI::App& app, Command& command);

}  // namespace lockstep
