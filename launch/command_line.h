// SPDX-License-Identifier: Apache-2.0
//
// The command line of `lockstep`: subcommands and their flags. Parsing touches neither files nor MPI.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

enum class CommandKind { train, plan, profile, info, help };

struct Command {
  CommandKind kind = CommandKind::help;
  std::string text;  // help: what to print

  // train, plan and profile
  std::string config;                  // preset name or path
  std::vector<std::string> overrides;  // "section.key=value", in order
  bool print_config = false;
  // train
  std::string init;     // safetensors to start from
  std::string export_;  // safetensors to write at the end
  std::string digest;   // file for the hash of all trained state
  // train and profile
  std::string trace;  // file for the Chrome trace of rank 0
  // profile
  int steps = 10;  // to average over
  int rows = 20;   // of the table; 0: all
};

// Throws UsageError, naming the nearest command or flag.
Command parse_command_line(int argc, const char* const* argv);

}  // namespace lockstep
