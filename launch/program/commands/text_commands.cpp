// SPDX-License-Identifier: Apache-2.0
//
// The commands that print a text about the program itself.
#include <algorithm>

#include <CLI/CLI.hpp>

#include "core/error.h"
#include "core/text/named_entries.h"
#include "launch/program/commands/commands.h"
#include "launch/program/config/config.h"
#include "launch/program/config/suggestions.h"
#include "launch/program/version.h"

namespace lockstep {
namespace {

std::string help_text(const Command& command, std::span<const CommandHelp> all) {
  const std::string& topic = command.topic;
  if (topic.empty()) return overview(all);
  const auto found = std::ranges::find(all, topic, &CommandHelp::name);
  if (found != all.end()) return help_of(*found);
  throw UsageError(fmt::format("unknown command {}{}", topic, did_you_mean(nearest(topic, names_in(all)))));
}

std::string completion_text(const Command& command, std::span<const CommandHelp> all) {
  if (command.shell == "bash") return bash_completion(all, command.registry);
  throw UsageError(fmt::format("no completion for {}; allowed is bash", command.shell));
}

}  // namespace

extern const CommandEntry keys_command = {
    .name = "keys",
    .description = "Print every key of the configuration: default, meaning, range",
    .example = "lockstep keys",
    .flags =
        [](CLI::App& app, Command& command) {
          app.add_flag("--markdown", command.markdown, "Print tables in Markdown");
        },
    .text =
        [](const Command& command, std::span<const CommandHelp>) {
          return command.markdown ? keys_as_markdown(command.registry) : describe_keys(command.registry);
        }};

extern const CommandEntry completion_command = {
    .name = "completion",
    .description = "Print a script that completes commands in a shell",
    .example = "source <(lockstep completion bash)",
    .flags = [](CLI::App& app,
                Command& command) { app.add_option("SHELL", command.shell, "Shell: bash")->required(); },
    .text = completion_text};

extern const CommandEntry help_command = {
    .name = "help",
    .description = "Print the commands, or the flags of one",
    .example = "lockstep help train",
    .flags =
        [](CLI::App& app, Command& command) {
          app.add_option("COMMAND", command.topic,
                         "Command whose flags to print; without it the commands are listed");
        },
    .text = help_text};

extern const CommandEntry version_command = {.name = "version",
                                             .description = "Print the version, as --version does",
                                             .example = "lockstep version",
                                             .text = [](const Command&, std::span<const CommandHelp>) {
                                               return fmt::format("lockstep {}\n", kVersion);
                                             }};

}  // namespace lockstep
