// SPDX-License-Identifier: Apache-2.0
#include "launch/command_line.h"

#include <algorithm>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

#include "core/error.h"
#include "launch/command_help.h"
#include "launch/config.h"
#include "launch/suggestions.h"
#include "launch/version.h"

namespace lockstep {
namespace {

constexpr const char* kTrainExample =
    "mpirun -np 2 --bind-to none lockstep train fashion_mnist_cnn\n"
    "lockstep train own.toml --set train.epochs=3 --export own.safetensors";

// Everything a command line can say, bound to what it is parsed into.
struct Grammar {
  Command parsed;
  std::string device;
  std::string help_topic;
  std::string shell;
  bool markdown = false;
  CLI::App app{"", "lockstep"};
  std::vector<CLI::App*> commands;  // in the order of the help

  Grammar();
  std::vector<CommandHelp> help() const;
  std::vector<std::string> names() const;

 private:
  CLI::App* add(const std::string& name, const std::string& description, const std::string& example);
  void add_training(CLI::App* command);
};

CLI::App* Grammar::add(const std::string& name, const std::string& description, const std::string& example) {
  CLI::App* command = app.add_subcommand(name, description);
  command->footer(example);
  command->set_help_flag("-h,--help", "Print this and stop");
  commands.push_back(command);
  return command;
}

// What all commands that build a training are told.
void Grammar::add_training(CLI::App* command) {
  command
      ->add_option("CONFIG", parsed.config,
                   fmt::format("A TOML file, or a shipped preset: {}", fmt::join(preset_names(), ", ")))
      ->required();
  command
      ->add_option("--set", parsed.overrides,
                   "Override one key of the configuration, as in --set train.batch=64; repeatable. All keys: "
                   "lockstep keys")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("--device", device, "Where to compute: short for --set world.device=...")
      ->type_name("auto|cpu|cuda");
  command->add_flag("--print-config", parsed.print_config, "Print the configuration as TOML and stop");
}

Grammar::Grammar() {
  app.set_help_flag("-h,--help", "Print the commands and stop");
  app.require_subcommand(1);
  CLI::App* train = add("train", "Train a network", kTrainExample);
  CLI::App* plan = add("plan", "Print ranks and devices, memory, buckets and bytes per step; train nothing",
                       "mpirun -np 4 --bind-to none lockstep plan fashion_mnist_resnet20");
  CLI::App* profile = add("profile", "Train a few steps and print where their time goes, layer by layer",
                          "lockstep profile fashion_mnist_resnet20 --steps 20 --trace trace.json");
  CLI::App* init = add("init", "Write a configuration for a folder of your own images",
                       "lockstep init flowers\nmpirun -np 2 --bind-to none lockstep train flowers.toml");
  CLI::App* keys =
      add("keys", "Print every key of the configuration: default, meaning, allowed values", "lockstep keys");
  add("info", "Print what was built in and what was found on this machine", "lockstep info");
  CLI::App* completion = add("completion", "Print a script that completes commands in a shell",
                             "source <(lockstep completion bash)");
  CLI::App* help = add("help", "Print the commands, or the flags of one", "lockstep help train");
  add("version", "Print the version, as --version does", "lockstep version");

  for (CLI::App* command : {train, plan, profile}) add_training(command);
  train->add_option("--init", parsed.init, "Start from this safetensors file (PyTorch's names and layouts)")
      ->type_name("FILE");
  train->add_option("--export", parsed.export_, "Write the trained network to this safetensors file")
      ->type_name("FILE");
  train->add_option("--digest", parsed.digest, "Write a hash of all trained state to this file")
      ->type_name("FILE");
  for (CLI::App* command : {train, profile}) {
    command
        ->add_option("--trace", parsed.trace, "Write rank 0's timeline as a Chrome trace (opens in Perfetto)")
        ->type_name("FILE");
  }
  profile->add_option("--steps", parsed.steps, "Steps to average over, at most 1000")
      ->check(CLI::Range(1, 1000))
      ->type_name("N");
  profile->add_option("--rows", parsed.rows, "Rows of the table of layers; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->type_name("N");
  init->add_option("FOLDER", parsed.folder,
                   "Holds train/CLASS/*.jpg and test/CLASS/*.jpg (or val/), all images of one size")
      ->required();
  init->add_option("--output", parsed.output,
                   "File to write, never over another; by default FOLDER's name and .toml, here")
      ->type_name("FILE");
  keys->add_flag("--markdown", markdown, "As tables in Markdown");
  completion->add_option("SHELL", shell, "bash")->required();
  help->add_option("COMMAND", help_topic, "One of the commands; without it: all of them");
}

std::vector<std::string> Grammar::names() const {
  std::vector<std::string> names;
  for (const CLI::App* command : commands) names.push_back(command->get_name());
  return names;
}

std::vector<CommandHelp> Grammar::help() const {
  std::vector<CommandHelp> all;
  for (const CLI::App* command : commands) {
    CommandHelp& help = all.emplace_back();
    help.name = command->get_name();
    help.description = command->get_description();
    help.example = command->get_footer();
    for (const CLI::Option* option : command->get_options()) {
      if (option->get_positional()) {
        help.arguments.push_back({option->get_name(), option->get_description(), !option->get_required()});
        continue;
      }
      FlagHelp& flag = help.flags.emplace_back();
      for (const std::string& name : option->get_snames()) flag.names.push_back("-" + name);
      for (const std::string& name : option->get_lnames()) flag.names.push_back("--" + name);
      const std::string type = option->get_type_name();  // followed by a ':' and what is checked
      if (option->get_expected_max() > 0) flag.value = type.substr(0, type.find(':'));
      flag.description = option->get_description();
    }
    if (help.name == "train") help.footer = "\nKeys of the configuration:\n" + describe_keys();
  }
  return all;
}

// A flag that is none: another flag, or a key of the configuration.
std::string explain_flag(const std::string& word, const CommandHelp& command, bool takes_keys) {
  std::vector<std::string> flags;
  for (const FlagHelp& flag : command.flags) flags.push_back(flag.names.back());
  const std::string name = word.substr(0, word.find('='));
  std::string key_name = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  std::ranges::replace(key_name, '-', '_');
  const std::string near = nearest(name, flags);
  const std::string known = known_key(key_name);
  const std::string key = !known.empty() || !near.empty() ? known : suggested_key(key_name);
  if (takes_keys && !key.empty()) {
    const std::size_t equals = word.find('=');
    return fmt::format("unknown flag {}; did you mean the configuration's key {}? Set it with --set {}={}",
                       name, key, key, equals == std::string::npos ? "..." : word.substr(equals + 1));
  }
  if (!near.empty()) return fmt::format("unknown flag {}; did you mean {}?", name, near);
  return fmt::format("unknown flag {}; allowed are {}", name, fmt::join(flags, ", "));
}

// What is wrong in the words CLI11 could not place.
std::string explain(const Grammar& grammar, const std::string& word) {
  const std::vector<CLI::App*> chosen = grammar.app.get_subcommands();
  if (chosen.empty()) {
    if (word.starts_with("-")) return fmt::format("unknown flag {}; see lockstep help", word);
    const std::vector<std::string> names = grammar.names();
    const std::string near = nearest(word, names);
    return near.empty() ? fmt::format("unknown command {}; allowed are {}", word, fmt::join(names, ", "))
                        : fmt::format("unknown command {}{}", word, did_you_mean(near));
  }
  const std::string& name = chosen.front()->get_name();
  if (!word.starts_with("-")) {
    const bool is_setting = word.find('=') != std::string::npos;
    return is_setting ? fmt::format("unexpected argument {}; did you mean --set {}?", word, word)
                      : fmt::format("unexpected argument {}; see lockstep help {}", word, name);
  }
  const std::vector<CommandHelp> help = grammar.help();
  const bool takes_keys = chosen.front()->get_option_no_throw("--set") != nullptr;
  return explain_flag(word, *std::ranges::find(help, name, &CommandHelp::name), takes_keys);
}

Command text_command(const std::string& text) {
  Command command;
  command.text = text;
  return command;
}

// Of one command, or of all for an empty name.
std::string help_text(const Grammar& grammar, const std::string& name) {
  const std::vector<CommandHelp> help = grammar.help();
  if (name.empty()) return overview(help);
  const auto found = std::ranges::find(help, name, &CommandHelp::name);
  if (found == help.end()) {
    throw UsageError(fmt::format("unknown command {}{}", name, did_you_mean(nearest(name, grammar.names()))));
  }
  return help_of(*found);
}

// What is answered with a text alone.
std::optional<Command> text_of(const Grammar& grammar, const std::string& command) {
  if (command == "help") return text_command(help_text(grammar, grammar.help_topic));
  if (command == "version") return text_command(fmt::format("lockstep {}\n", kVersion));
  if (command == "keys") return text_command(grammar.markdown ? keys_as_markdown() : describe_keys());
  if (command != "completion") return std::nullopt;
  if (grammar.shell != "bash")
    throw UsageError(fmt::format("no completion for {}; allowed is bash", grammar.shell));
  return text_command(bash_completion(grammar.help()));
}

}  // namespace

Command parse_command_line(int argc, const char* const* argv) {
  Grammar grammar;
  if (argc < 2) {
    Command command = text_command(help_text(grammar, ""));
    command.exit_code = exit_code::usage;
    return command;
  }
  if (std::string_view(argv[1]) == "--version" || std::string_view(argv[1]) == "-V")
    return *text_of(grammar, "version");
  try {
    grammar.app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const std::vector<CLI::App*> chosen = grammar.app.get_subcommands();
    return text_command(help_text(grammar, chosen.empty() ? "" : chosen.front()->get_name()));
  } catch (const CLI::ExtrasError&) {
    throw UsageError(explain(grammar, grammar.app.remaining(true).front()));
  } catch (const CLI::ParseError& error) {
    const std::vector<std::string> rest = grammar.app.remaining(true);
    throw UsageError(rest.empty() ? std::string(error.what()) + "; see lockstep help"
                                  : explain(grammar, rest.front()));
  }
  const std::string name = grammar.app.get_subcommands().front()->get_name();
  if (std::optional<Command> text = text_of(grammar, name)) return *text;
  Command& parsed = grammar.parsed;
  if (!grammar.device.empty()) parsed.overrides.push_back("world.device=" + grammar.device);
  parsed.kind = name == "train"     ? CommandKind::train
                : name == "plan"    ? CommandKind::plan
                : name == "profile" ? CommandKind::profile
                : name == "init"    ? CommandKind::init
                                    : CommandKind::info;
  return parsed;
}

}  // namespace lockstep
