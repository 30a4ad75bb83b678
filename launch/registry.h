// SPDX-License-Identifier: Apache-2.0
//
// Registry: what the program knows by name. It begins with all that is shipped; a program of one's own adds
// to it and hands it to run(), and then has what it added in every command, in the help, in the checks of a
// configuration and in the completion.
#pragma once

#include <string>
#include <vector>

#include "comm/exchanges/exchanges.h"
#include "data/dataset.h"
#include "models/networks/networks.h"
#include "models/optimizer.h"
#include "models/schedule.h"

namespace lockstep {

// A configuration that is part of the program.
struct Preset {
  std::string name;
  std::string text;  // TOML
};
// Those that are shipped.
const std::vector<Preset>& shipped_presets();

struct CommandEntry;  // see commands/commands.h
// Those that are shipped, in the order of the help.
const std::vector<const CommandEntry*>& shipped_commands();

// What is pointed to outlives it.
struct Registry {
  std::vector<NetworkEntry> networks = network_table();            // model.name
  std::vector<DatasetFormat> formats = dataset_formats();          // data.format
  std::vector<OptimizerKind> optimizers = optimizer_kinds();       // optimizer.name
  std::vector<ScheduleKind> schedules = schedule_kinds();          // schedule.name
  std::vector<const ExchangeKind*> exchanges = exchange_kinds();   // comm.codec
  std::vector<const CommandEntry*> commands = shipped_commands();  // `lockstep COMMAND`
  std::vector<Preset> presets = shipped_presets();                 // `train PRESET`
};

}  // namespace lockstep
