// SPDX-License-Identifier: Apache-2.0
//
// A configuration in TOML, and settings of the command line. An accepted configuration must round-trip
// through its printed text.
#include "core/error.h"
#include "launch/program/config/config.h"
#include "launch/program/setup/engine_options.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep {

// Fuzz targets run no commands.
const std::vector<const CommandEntry*>& shipped_commands() {
  static const std::vector<const CommandEntry*> none;
  return none;
}

}  // namespace lockstep

namespace lockstep::fuzz {

// The input is the file; each \x01 begins a setting.
void try_input(std::string_view input) {
  std::vector<std::string> settings;
  const std::size_t end = std::min(input.find('\1'), input.size());
  for (std::size_t at = end; at < input.size();) {
    const std::size_t next = std::min(input.find('\1', at + 1), input.size());
    settings.emplace_back(input.substr(at + 1, next - at - 1));
    at = next;
  }
  const Config config = load_config(put("run.toml", input.substr(0, end)).string(), settings);
  const std::string printed = to_toml(config);
  const std::string again = to_toml(load_config(put("again.toml", printed).string(), {}));
  if (again != printed)
    throw Broken("the printed configuration must read back unchanged: " + first_difference(printed, again));
  require(differences(printed, again).empty(), "differences() must be empty for equal texts");
}

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  for (const Preset& preset : shipped_presets()) all.push_back(preset.text);
  all.push_back(to_toml(Config()));
  all.push_back(all.front() +
                "\1train.batch=64\1comm.bucket_mib=[1, 2, 3]\1run.dir=a "
                "b\1comm.codec_for=\"fc1*=int8\"\1run.metrics=top5, f1");
  all.emplace_back(
      "[data]\npath = 'x'\n[[model.layer]]\nkind = 'block'\nrepeat = 2\n[[model.layer.layer]]\nkind = "
      "'dense'\n"
      "features = 3\nl2 = 0.1\n[[model.layer]]\nkind = 'dense'\n\1model.layer.block1.fc1.features=4");
  all.emplace_back("[train]\nbatch = 'x'\n[[[\n\"\\u001b[2J\" = 1\n[model]\nname = \"\\u0007\"\n");
  return all;
}

}  // namespace lockstep::fuzz
