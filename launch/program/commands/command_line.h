// SPDX-License-Identifier: Apache-2.0
//
// The command line of `lockstep`: subcommands and their flags. Parsing touches neither files nor MPI.
#pragma once

#include <any>
#include <map>
#include <string>
#include <typeindex>
#include <vector>

#include "launch/program/registry.h"

namespace CLI {
class Validator;
}

namespace lockstep {

// The parsed command line.
struct Command {
  const CommandEntry* entry = nullptr;  // see commands.h
  std::string name;                     // the entry's
  Registry registry;
  // For a command that prints a text: that text. A bare `lockstep` prints help, too, and exit_code is then
  // exit_code::usage.
  std::string text;
  int exit_code = 0;

  // For all other commands: which log lines are printed.
  std::string log_level = "info";
  // Ranks to start; 0: use the ranks that a launcher started, or this process alone.
  int ranks = 0;

  // commands that read a configuration
  std::string config;                  // preset name or path
  std::vector<std::string> overrides;  // "section.key=value", in order
  std::string device;                  // parsing makes it an override
  bool print_config = false;
  // train and eval
  std::string init;  // safetensors to start from, or to evaluate
  // train
  std::string export_;  // safetensors to write at the end
  std::string digest;   // file for the hash of all trained state
  // train and profile
  std::string trace;  // file for the Chrome trace
  // profile
  int steps = 10;  // to average over
  int rows = 20;   // of the table; 0: all
  // init
  std::string folder;  // of the user's images
  std::string output;  // TOML file to write; empty: the folder's name
  // help, completion, keys
  std::string topic;  // the name of a command; empty: all
  std::string shell;
  bool markdown = false;

  // Flags of a single command: a struct in its own file, created at the first access.
  template <typename Flags>
  Flags& own() {
    std::any& flags = own_flags[typeid(Flags)];
    return flags.has_value() ? *std::any_cast<Flags>(&flags) : flags.emplace<Flags>();
  }
  template <typename Flags>
  const Flags& own() const {
    return *std::any_cast<Flags>(&own_flags.at(typeid(Flags)));
  }
  std::map<std::type_index, std::any> own_flags = {};
};

// For the check() of a flag: numbers from least to most. Refuses NaN, which CLI::Range accepts.
CLI::Validator number_between(double least, double most);

// Throws UsageError, naming the nearest command, flag or key.
Command parse_command_line(int argc, const char* const* argv, const Registry& registry = {});

}  // namespace lockstep
