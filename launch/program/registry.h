// SPDX-License-Identifier: Apache-2.0
//
// Registry: the networks, formats, commands and other entries that the program finds by name. It starts with
// all shipped entries. A custom program adds its own and passes the registry to run(); every command, the
// help, the configuration checks and the completion then know them.
#pragma once

#include <string>
#include <vector>

#include "comm/exchanges/exchanges.h"
#include "data/dataset.h"
#include "models/networks/networks.h"
#include "models/optimizer.h"
#include "models/schedule.h"

namespace lockstep {

// A configuration built into the program.
struct Preset {
  std::string name;
  std::string text;  // TOML
};
const std::vector<Preset>& shipped_presets();

struct CommandEntry;  // see commands/commands.h
// In the order of the help.
const std::vector<const CommandEntry*>& shipped_commands();

// Pointers must outlive the registry.
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
