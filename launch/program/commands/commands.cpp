// SPDX-License-Identifier: Apache-2.0
#include "launch/program/commands/commands.h"

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

#include "launch/program/config/config.h"

namespace lockstep {

extern const CommandEntry train_command, plan_command, profile_command, tune_command, find_batch_command,
    sweep_command, eval_command, predict_command, report_command, monitor_command, init_command, pack_command,
    inspect_command, keys_command, info_command, completion_command, help_command, version_command;

const std::vector<const CommandEntry*>& shipped_commands() {
  static const std::vector<const CommandEntry*> table = {
      &train_command,      &plan_command, &profile_command, &tune_command,   &find_batch_command,
      &sweep_command,      &eval_command, &predict_command, &report_command, &monitor_command,
      &init_command,       &pack_command, &inspect_command, &keys_command,   &info_command,
      &completion_command, &help_command, &version_command};
  return table;
}

void add_configuration_flags(CLI::App& app, Command& command) {
  const std::string presets = fmt::format("{}", fmt::join(preset_names(command.registry), ", "));
  app.add_option("CONFIG", command.config, "A TOML file, or a shipped preset: " + presets)->required();
  app.add_option("--set", command.overrides,
                 "Override one key of the configuration, as in --set train.batch=64; repeatable. All keys: "
                 "lockstep keys")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

void add_training_flags(CLI::App& app, Command& command) {
  add_configuration_flags(app, command);
  app.add_option("--device", command.device, "Device of the ranks: short for --set world.device=...")
      ->type_name("auto|cpu|cuda|idle");
  app.add_flag("--print-config", command.print_config, "Print the configuration as TOML and exit");
}

void add_trace_flag(CLI::App& app, Command& command) {
  app.add_option("--trace", command.trace, "Write a timeline as a Chrome trace (opens in Perfetto)")
      ->type_name("FILE");
}

}  // namespace lockstep
