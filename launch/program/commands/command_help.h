// SPDX-License-Identifier: Apache-2.0
//
// Help texts and shell completion. Both are made from one description of each command, which command_line.cpp
// takes from the flags it parses.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "launch/program/registry.h"

namespace lockstep {

struct FlagHelp {
  std::vector<std::string> names;  // "-h", "--help"
  std::string value;               // "FILE", "KEY=VALUE", "auto|cpu|cuda"; empty: a switch
  std::string description;
};

struct ArgumentHelp {
  // "CONFIG": a preset or a TOML file; "FILE"; "WEIGHTS"; "FOLDER"; "RUN"; "COMMAND"; "SHELL"
  std::string name;
  std::string description;
  bool optional = false;
  bool repeatable = false;
};

struct CommandHelp {
  std::string name;
  std::string description;
  std::vector<ArgumentHelp> arguments;
  std::vector<FlagHelp> flags;
  std::string example;  // one per line
  std::string footer;
};

// `lockstep help`, which fits a terminal of 24 lines, and `lockstep help COMMAND`. Lines have at most 80
// characters.
std::string overview(std::span<const CommandHelp> commands);
std::string help_of(const CommandHelp& command);

// A script for bash to source: completes commands, flags, presets, files, keys and their values.
std::string bash_completion(std::span<const CommandHelp> commands, const Registry& registry);

}  // namespace lockstep
