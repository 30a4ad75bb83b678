// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/run_files/run_record.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/log.h"
#include "core/text/json_text.h"
#include "launch/observe/run_files/run_folder.h"
#include "launch/train/checkpoint/plain_file.h"

namespace lockstep {
namespace {

// Returns an empty text where the file cannot be read.
std::string text_in(const std::filesystem::path& path) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{16} << 20;
  try {
    return read_plain_file(path, kMostBytes);
  } catch (const Error&) {
    return {};  // absent, or not a regular file
  }
}

// Removes facts that differ between starts of the same run. JSON with more levels than a run writes is not
// changed: writing it is recursive.
std::string lasting_facts(const std::string& text) {
  nlohmann::json facts;
  try {
    facts = nlohmann::json::parse(text, depth_limit(100), false);
  } catch (const DataError&) {
    return text;
  }
  if (!facts.is_object()) return text;
  facts.erase("started");
  facts.erase("command");
  facts.erase("device_memory");
  return facts.dump();
}

void replace(const std::filesystem::path& path, const std::string& text, bool same) {
  std::error_code error;
  if (!same && std::filesystem::exists(std::filesystem::symlink_status(path, error))) {
    const std::filesystem::path earlier = name_of_earlier(path);
    std::filesystem::rename(path, earlier, error);
    if (error)
      throw IoError(
          fmt::format("cannot rename {} to {}: {}", path.string(), earlier.string(), error.message()));
  }
  write_atomically(path, text, Links::replace);
}

}  // namespace

void write_run_record(const std::filesystem::path& folder, const std::string& config_text,
                      const std::string& facts) {
  try {
    const std::filesystem::path toml = folder / "config.toml", json = folder / "run.json";
    replace(toml, config_text, text_in(toml) == config_text);
    replace(json, facts, lasting_facts(text_in(json)) == lasting_facts(facts));
  } catch (const IoError& error) {
    log::warning("cannot record the configuration and the machine: {}; training continues", error.what());
  }
}

}  // namespace lockstep
