// SPDX-License-Identifier: Apache-2.0
//
// The subcommands. Each has its own file, with a CommandEntry that commands.cpp lists; other programs add
// their commands to the Registry.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "comm/world.h"
#include "launch/program/commands/command_help.h"
#include "launch/program/commands/command_line.h"
#include "launch/train/job_end.h"

namespace CLI {
class App;
}

namespace lockstep {

struct CommandEntry {
  std::string_view name;
  std::string_view description;
  std::string_view example;  // one per line
  // Binds arguments and flags to the command's members; null: none.
  void (*flags)(CLI::App& app, Command& command) = nullptr;
  // The action: exactly one of the three is set. in_world and alone return the exit code or throw.
  int (*in_world)(const Command& command, World& world) = nullptr;  // collective
  int (*alone)(const Command& command) = nullptr;                   // each process runs it independently
  // Returns the text that rank 0 prints. Touches neither files nor MPI.
  std::string (*text)(const Command& command, std::span<const CommandHelp> commands) = nullptr;
  bool lists_keys = false;  // its help ends with the keys of the configuration
};

// For CommandEntry::in_world: calls the action, whose objects outlive an error of this rank (run_or_abort).
template <typename Objects, int (*kAction)(Objects& objects, const Command& command, World& world)>
int in_job(const Command& command, World& world) {
  Objects objects;
  return run_or_abort(world, [&] { return kAction(objects, command, world); });
}

// Flags of several commands: a configuration; a configuration and the flags beside it, for commands that
// build a training; --trace, for commands that can trace it.
void add_configuration_flags(CLI::App& app, Command& command);
void add_training_flags(CLI::App& app, Command& command);
void add_trace_flag(CLI::App& app, Command& command);

}  // namespace lockstep
