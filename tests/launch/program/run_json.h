// SPDX-License-Identifier: Apache-2.0
//
// The JSON files of a run, as parsed objects. Separate from program.h, because some programs with program.h
// link no JSON library.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/launch/program/program.h"
#include "tests/message_of.h"

namespace lockstep {

// The lines of a file with one object per line, such as steps.jsonl. Empty if the file does not exist.
inline std::vector<nlohmann::json> json_lines_of(const std::filesystem::path& file) {
  std::vector<nlohmann::json> lines;
  for (const std::string& line : lines_of(text_of(file))) lines.push_back(nlohmann::json::parse(line));
  return lines;
}
// The lines of the output that are JSON objects.
inline std::vector<nlohmann::json> json_lines_of(const ProgramResult& result) {
  std::vector<nlohmann::json> found;
  for (const std::string& line : lines_of(result.output))
    if (line.starts_with('{')) found.push_back(nlohmann::json::parse(line));
  return found;
}

// The lines of metrics.jsonl in a run's folder, one for each epoch.
inline std::vector<nlohmann::json> metrics_of(const std::filesystem::path& folder) {
  return json_lines_of(folder / "metrics.jsonl");
}

// The last line of metrics.jsonl. Throws if there is none.
inline nlohmann::json last_metrics_of(const std::filesystem::path& folder) {
  const std::vector<nlohmann::json> lines = metrics_of(folder);
  if (lines.empty()) throw std::runtime_error(folder.string() + ": metrics.jsonl has no line");
  return lines.back();
}

// run.json in a run's folder.
inline nlohmann::json run_record(const std::filesystem::path& folder) {
  return nlohmann::json::parse(text_of(folder / "run.json"));
}

}  // namespace lockstep
