// SPDX-License-Identifier: Apache-2.0
//
// Registry: what the program knows by name, apart from its commands. It begins with all that is shipped; a
// program of one's own adds to it and hands it to run(), and then has its networks, formats and presets in
// every command, in the help, in the checks of a configuration and in the completion.
#pragma once

#include <string>
#include <vector>

#include "data/dataset.h"
#include "models/networks/networks.h"

namespace lockstep {

// A configuration that is part of the program.
struct Preset {
  std::string name;
  std::string text;  // TOML
};
// Those that are shipped.
const std::vector<Preset>& shipped_presets();

struct Registry {
  std::vector<NetworkEntry> networks = network_table();    // model.name
  std::vector<DatasetFormat> formats = dataset_formats();  // data.format
  std::vector<Preset> presets = shipped_presets();         // `train PRESET`
};

}  // namespace lockstep
