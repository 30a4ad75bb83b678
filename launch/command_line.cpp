// SPDX-License-Identifier: Apache-2.0
#include "launch/command_line.h"

#include <CLI/CLI.hpp>

#include "core/error.h"
#include "launch/config.h"
#include "launch/suggestions.h"

namespace lockstep {
namespace {

const std::vector<std::string> kCommands = {"train", "plan", "profile", "info"};

std::string join(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, ", ")); }

// What is wrong in the words CLI11 could not place.
std::string explain(const CLI::App& app, const std::string& word) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen.front();
  const bool is_flag = word.starts_with("-");
  std::vector<std::string> candidates;
  if (is_flag) {
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& name : option->get_lnames()) candidates.push_back("--" + name);
    }
  } else if (chosen.empty()) {
    candidates = kCommands;
  }
  const std::string kind = is_flag ? "flag" : chosen.empty() ? "command" : "argument";
  const std::string name = word.substr(0, word.find('='));
  const std::string near = nearest(name, candidates);
  if (!near.empty()) return fmt::format("unknown {} {}; did you mean {}?", kind, name, near);
  if (candidates.empty()) return fmt::format("unexpected {} {}", kind, name);
  return fmt::format("unknown {} {}; allowed are {}", kind, name, join(candidates));
}

void add_config_flags(CLI::App& command, Command& parsed, std::string& device) {
  command
      .add_option("config", parsed.config, "A shipped preset (" + join(preset_names()) + ") or a TOML file")
      ->required();
  command.add_option("--set", parsed.overrides, "section.key=value: overrides one key; repeatable")
      ->take_all()
      ->expected(1);
  command.add_option("--device", device, "auto, cpu or cuda: short for --set world.device=...");
  command.add_flag("--print-config", parsed.print_config, "Print the configuration as TOML and stop");
  command.footer("Keys (section.key, type, default, meaning):\n" + describe_keys());
}

}  // namespace

Command parse_command_line(int argc, const char* const* argv) {
  Command parsed;
  std::string device;
  CLI::App app(
      "Lockstep trains neural networks on many devices at once, started by mpirun:\n"
      "  mpirun -np 2 --bind-to none lockstep train fashion_mnist_cnn\n"
      "Exit codes: 0 done, 64 wrong command line, 65 corrupt data, 70 failed (loss not finite, internal "
      "error), "
      "74 file missing, disk full or out of memory, 75 stopped but resumable, 78 impossible configuration.",
      "lockstep");
  app.require_subcommand(1);
  CLI::App* train = app.add_subcommand("train", "Train a network");
  CLI::App* plan =
      app.add_subcommand("plan", "Print ranks and devices, memory, buckets and bytes per step; run nothing");
  CLI::App* profile =
      app.add_subcommand("profile", "Train a few steps and print where their time goes, layer by layer");
  app.add_subcommand("info", "Print what was built in and what was found on this machine");
  add_config_flags(*train, parsed, device);
  add_config_flags(*plan, parsed, device);
  add_config_flags(*profile, parsed, device);
  train->add_option("--init", parsed.init, "Start from this safetensors file (PyTorch's names and layouts)");
  train->add_option("--export", parsed.export_, "Write the trained network to this safetensors file");
  train->add_option("--digest", parsed.digest, "Write a hash of all trained state to this file");
  for (CLI::App* command : {train, profile}) {
    command->add_option("--trace", parsed.trace,
                        "Write rank 0's timeline as a Chrome trace (opens in Perfetto)");
  }
  profile->add_option("--steps", parsed.steps, "Steps to average over")->check(CLI::Range(1, 1000));
  profile->add_option("--rows", parsed.rows, "Rows of the table of layers; 0: all")
      ->check(CLI::NonNegativeNumber);

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const std::vector<CLI::App*> chosen = app.get_subcommands();
    parsed.text = chosen.empty() ? app.help() : chosen.front()->help();
    return parsed;
  } catch (const CLI::ExtrasError&) {
    throw UsageError(explain(app, app.remaining(true).front()));
  } catch (const CLI::ParseError& error) {
    const std::vector<std::string> rest = app.remaining(true);
    throw UsageError(rest.empty() ? std::string(error.what()) + "; see lockstep --help"
                                  : explain(app, rest.front()));
  }
  if (!device.empty()) parsed.overrides.push_back("world.device=" + device);
  parsed.kind = train->parsed()     ? CommandKind::train
                : plan->parsed()    ? CommandKind::plan
                : profile->parsed() ? CommandKind::profile
                                    : CommandKind::info;
  return parsed;
}

}  // namespace lockstep
