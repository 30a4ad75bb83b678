// SPDX-License-Identifier: Apache-2.0
#include "launch/program/commands/command_help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/system/wrapped_text.h"

namespace lockstep {
namespace {

constexpr std::size_t kFlagColumns = 22;
constexpr std::size_t kCommandColumns = 13;  // so that each command fits one line

// A name, with its description beside it, or below it if the name is long.
std::string entry(const std::string& name, const std::string& description,
                  std::size_t columns = kFlagColumns) {
  const std::string text = wrapped(description, {.indent = columns});
  if (name.size() + 3 > columns) return fmt::format("  {}\n{}\n", name, text);
  return fmt::format("  {:<{}}{}\n", name, columns - 2, text.substr(columns));
}

std::string section(const std::string& title, const std::string& body) {
  return body.empty() ? "" : fmt::format("\n{}:\n{}", title, body);
}

}  // namespace

std::string overview(std::span<const CommandHelp> commands) {
  std::string text =
      "Lockstep trains neural networks on many devices at once, as ranks of mpirun.\n"
      "Usage: lockstep COMMAND [FLAGS]; lockstep help COMMAND lists flags. Commands:\n";
  for (const CommandHelp& command : commands)
    text += entry(command.name, command.description, kCommandColumns);
  return text +
         "Example: lockstep train fashion_mnist_cnn --ranks 2\n"
         "Exits: 0 done, 64 usage, 65 data, 70 failed, 74 file, 75 resumable, 78 config\n";
}

std::string help_of(const CommandHelp& command) {
  std::string usage = "lockstep " + command.name;
  std::string arguments, flags;
  if (!command.flags.empty()) usage += " [FLAGS]";
  for (const ArgumentHelp& argument : command.arguments) {
    usage += argument.optional ? " [" + argument.name + ']' : ' ' + argument.name;
    if (argument.repeatable) usage += " [" + argument.name + " ..]";
    arguments += entry(argument.name, argument.description);
  }
  for (const FlagHelp& flag : command.flags) {
    const std::string names = fmt::format("{}", fmt::join(flag.names, ", "));
    flags += entry(flag.value.empty() ? names : names + ' ' + flag.value, flag.description);
  }
  return wrapped(command.description, {}) + "\n\nUsage: " + usage + "\n" + section("Arguments", arguments) +
         section("Flags", flags) + section("Example", wrapped(command.example, {.indent = 2}) + '\n') +
         command.footer;
}

}  // namespace lockstep
