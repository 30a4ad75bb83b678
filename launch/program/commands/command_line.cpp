// SPDX-License-Identifier: Apache-2.0
#include "launch/program/commands/command_line.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/log.h"
#include "core/text/named_entries.h"
#include "launch/program/commands/command_help.h"
#include "launch/program/commands/commands.h"
#include "launch/program/config/config.h"
#include "launch/program/config/suggestions.h"

namespace lockstep {
namespace {

// The grammar of the command line, bound to the Command that parsing fills.
struct Grammar {
  explicit Grammar(const Registry& registry);
  std::vector<CommandHelp> help() const;

  Command parsed;
  CLI::App app{"", "lockstep"};
  std::vector<CLI::App*> apps;  // one per command of the registry, in its order
};

void add_log_level_flag(CLI::App& app, Command& command) {
  const std::vector<std::string> words(std::begin(log::kLevelWords), std::end(log::kLevelWords));
  app.add_option("--log-level", command.log_level, "Lowest level of the log lines to print (default: info)")
      ->type_name(fmt::format("{}", fmt::join(words, "|")))
      ->check(CLI::IsMember(words));
}

void add_ranks_flag(CLI::App& app, Command& command) {
  constexpr int kMostRanks = 1024;
  app.add_option(
         "--ranks", command.ranks,
         "Start N ranks on this machine with mpirun, and print that command (default: the ranks that a "
         "launcher started, or one)")
      ->type_name("N")
      ->check(CLI::Range(1, kMostRanks));
}

bool takes_value(const CLI::Option& option) { return option.get_expected_max() > 0; }

Grammar::Grammar(const Registry& registry) {
  parsed.registry = registry;
  app.set_help_flag("-h,--help", "Print the commands and exit");
  app.require_subcommand(1);
  // An empty argument is often a variable of a script that is not set.
  const CLI::Validator is_given([](std::string& text) { return std::string(text.empty() ? "is empty" : ""); },
                                "");
  for (const CommandEntry* entry : registry.commands) {
    CLI::App* command = app.add_subcommand(std::string(entry->name), std::string(entry->description));
    command->footer(std::string(entry->example));
    command->set_help_flag("-h,--help", "Print this help and exit");
    if (entry->flags != nullptr) entry->flags(*command, parsed);
    if (entry->text == nullptr) add_log_level_flag(*command, parsed);
    const bool has_own = command->get_option_no_throw("--ranks") != nullptr;  // the command defines --ranks
    if (entry->in_world != nullptr && !has_own) add_ranks_flag(*command, parsed);
    for (CLI::Option* option : command->get_options())
      if (takes_value(*option)) option->check(is_given);
    apps.push_back(command);
  }
}

CommandHelp help_for(const CLI::App& command) {
  CommandHelp help{
      .name = command.get_name(), .description = command.get_description(), .example = command.get_footer()};
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) {
      help.arguments.push_back({option->get_name(), option->get_description(), !option->get_required(),
                                option->get_expected_max() > 1});
      continue;
    }
    FlagHelp& flag = help.flags.emplace_back();
    for (const std::string& name : option->get_snames()) flag.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) flag.names.push_back("--" + name);
    const std::string type = option->get_type_name();  // then a ':' and the allowed values
    if (takes_value(*option)) flag.value = type.substr(0, type.find(':'));
    flag.description = option->get_description();
  }
  return help;
}

std::vector<CommandHelp> Grammar::help() const {
  std::vector<CommandHelp> all;
  for (std::size_t i = 0; i < apps.size(); ++i) {
    all.push_back(help_for(*apps[i]));
    if (parsed.registry.commands[i]->lists_keys)
      all.back().footer = "\nKeys of the configuration:\n" + describe_keys(parsed.registry);
  }
  return all;
}

// Explains an unknown flag: suggests another flag, or a key of the configuration if the command takes keys.
std::string explain_flag(const std::string& word, const CommandHelp& command,
                         std::span<const detail::Key> keys) {
  std::vector<std::string> flags;
  for (const FlagHelp& flag : command.flags) flags.push_back(flag.names.back());
  const std::string name = word.substr(0, word.find('='));
  const std::string key_name = key_named_by(word);
  const std::string near = nearest(name, flags);
  const std::string known = known_key(key_name, keys);
  const std::string key = !known.empty() || !near.empty() ? known : suggested_key(key_name, keys);
  if (!key.empty()) {
    const std::size_t equals = word.find('=');
    return fmt::format("unknown flag {}; did you mean the configuration's key {}? Set it with --set {}={}",
                       name, key, key, equals == std::string::npos ? "..." : word.substr(equals + 1));
  }
  if (!near.empty()) return fmt::format("unknown flag {}; did you mean {}?", name, near);
  return fmt::format("unknown flag {}; allowed are {}", name, fmt::join(flags, ", "));
}

// Explains a word that CLI11 could not place.
std::string explain(const Grammar& grammar, const std::string& given_word) {
  const std::string word = shown_word(given_word);
  const std::vector<CLI::App*> chosen = grammar.app.get_subcommands();
  if (chosen.empty()) {
    if (word.starts_with("-")) return fmt::format("unknown flag {}; see lockstep help", word);
    const std::vector<std::string> names = names_in(grammar.parsed.registry.commands);
    const std::string near = nearest(word, names);
    return near.empty() ? fmt::format("unknown command {}; allowed are {}", word, fmt::join(names, ", "))
                        : fmt::format("unknown command {}{}", word, did_you_mean(near));
  }
  const std::string& name = chosen.front()->get_name();
  const bool takes_keys = chosen.front()->get_option_no_throw("--set") != nullptr;
  if (!word.starts_with("-")) {
    const bool is_setting = takes_keys && word.find('=') != std::string::npos;
    return is_setting ? fmt::format("unexpected argument {}; did you mean --set {}?", word, word)
                      : fmt::format("unexpected argument {}; see lockstep help {}", word, name);
  }
  const std::vector<CommandHelp> help = grammar.help();
  std::vector<detail::Key> keys;
  if (takes_keys) keys = detail::keys_of(grammar.parsed.registry);
  return explain_flag(word, *std::ranges::find(help, name, &CommandHelp::name), keys);
}

// Completes the parsed command; the text of a text command is made here.
Command given(Grammar& grammar, const std::string& name) {
  Command& command = grammar.parsed;
  command.name = name;
  command.entry = *std::ranges::find(command.registry.commands, name, &CommandEntry::name);
  if (!command.device.empty()) command.overrides.push_back("world.device=" + command.device);
  if (command.entry->text != nullptr) command.text = command.entry->text(command, grammar.help());
  return command;
}

// `lockstep help TOPIC`.
Command help_about(Grammar& grammar, const std::string& topic) {
  grammar.parsed.topic = topic;
  return given(grammar, "help");
}

// Throws UsageError for "--init=": CLI11 would take the next word as the value.
void require_value(const std::string& word, const CLI::App& command) {
  if (!word.starts_with("--") || word.find('=') + 1 != word.size()) return;
  const std::string flag = word.substr(0, word.size() - 1);
  const CLI::Option* option = command.get_option_no_throw(flag);
  if (option != nullptr && takes_value(*option))
    throw UsageError(fmt::format("{}: is empty; see lockstep help", flag));
}

// The words after the program's name, the last first, as CLI11 takes them. CLI11 splits "[a,b]" at the comma
// for an argument that takes several paths: "./[a,b]" names the same path and is not split.
std::vector<std::string> reversed_words(const Grammar& grammar, int argc, const char* const* argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  const auto command =
      std::ranges::find(grammar.apps, words.front(), [](const CLI::App* app) { return app->get_name(); });
  const bool takes_paths = command != grammar.apps.end() &&
                           std::ranges::any_of((*command)->get_options(), [](const CLI::Option* option) {
                             return option->get_positional() && option->get_allow_extra_args();
                           });
  for (std::string& word : words) {
    if (command != grammar.apps.end()) require_value(word, **command);
    if (takes_paths && word.starts_with('[') && word.ends_with(']')) word.insert(0, "./");
  }
  std::ranges::reverse(words);
  return words;
}

}  // namespace

CLI::Validator number_between(double least, double most) {
  return CLI::Validator(
      [range = CLI::Range(least, most)](std::string& text) {
        const bool is_nan = std::isnan(std::strtod(text.c_str(), nullptr));
        return is_nan ? text + " is not a number" : range(text);
      },
      "");
}

Command parse_command_line(int argc, const char* const* argv, const Registry& registry) {
  Grammar grammar(registry);
  if (argc < 2) {
    Command command = help_about(grammar, "");
    command.exit_code = exit_code::usage;
    return command;
  }
  if (std::string_view(argv[1]) == "--version" || std::string_view(argv[1]) == "-V")
    return given(grammar, "version");
  try {
    grammar.app.parse(reversed_words(grammar, argc, argv));
  } catch (const CLI::CallForHelp&) {
    const std::vector<CLI::App*> chosen = grammar.app.get_subcommands();
    return help_about(grammar, chosen.empty() ? "" : chosen.front()->get_name());
  } catch (const CLI::ExtrasError&) {
    throw UsageError(explain(grammar, grammar.app.remaining(true).front()));
  } catch (const CLI::ParseError& error) {
    const std::vector<std::string> rest = grammar.app.remaining(true);
    throw UsageError(rest.empty() ? std::string(error.what()) + "; see lockstep help"
                                  : explain(grammar, rest.front()));
  }
  return given(grammar, grammar.app.get_subcommands().front()->get_name());
}

}  // namespace lockstep
