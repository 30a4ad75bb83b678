// SPDX-License-Identifier: Apache-2.0
#include "launch/program/tune/journal.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/text/json_text.h"
#include "launch/observe/run_files/run_folder.h"
#include "launch/program/config/config.h"
#include "launch/program/config/toml_text.h"

namespace lockstep {
namespace {

using TuneJson = nlohmann::ordered_json;

constexpr const char* kHeaderMark = "lockstep_tune";
constexpr const char* kWhatToDo = "remove the file, or use --fresh, which renames it";

TuneJson as_json(const TuneVisit& visit) {
  TuneJson blocks = TuneJson::array();
  for (const BenchBlock& block : visit.blocks)
    blocks.push_back({{"step_seconds", block.step_seconds}, {"exposed_seconds", block.exposed_seconds}});
  return {{"blocks", blocks}, {"seconds", visit.seconds}, {"steps", visit.steps}, {"problem", visit.problem}};
}

TuneVisit visit_from(const TuneJson& json) {
  TuneVisit visit{.seconds = json.at("seconds"), .steps = json.at("steps"), .problem = json.at("problem")};
  for (const TuneJson& block : json.at("blocks"))
    visit.blocks.push_back(
        {.step_seconds = block.at("step_seconds"), .exposed_seconds = block.at("exposed_seconds")});
  return visit;
}

// The number of pairs is not part of the key.
std::string key_of(const TuneSettings& settings, bool confirms) {
  return fmt::format("{}{}", confirms ? "once more: " : "", describe(settings));
}

TuneJson as_json(const TuneHeader& header) {
  return {{kHeaderMark, 1},        {"program", header.program}, {"ranks", header.ranks},
          {"nodes", header.nodes}, {"device", header.device},   {"config", header.config}};
}

// The first difference of the stored and the current header, "ranks: 4 against 2"; empty: they are equal.
std::string header_difference(const TuneJson& there, const TuneJson& here) {
  there.at(kHeaderMark);
  const std::string config = there.value("config", "");
  if (config != here.at("config")) return first_difference(config, here.at("config"));
  for (const auto& [name, value] : here.items()) {
    const TuneJson other = there.contains(name) ? there.at(name) : TuneJson();
    if (other != value) return fmt::format("{}: {} against {}", name, other.dump(), value.dump());
  }
  return {};
}

}  // namespace

TuneJournal::TuneJournal(const std::filesystem::path& path, const TuneHeader& header, bool fresh) {
  if (fresh) set_aside(path);
  const LineJournal& lines = lines_.emplace(path);
  const TuneJson here = as_json(header);
  int number = 0;
  try {
    for (const std::string& line : lines.found()) {
      ++number;
      const TuneJson json = TuneJson::parse(line);
      if (number > 1) {
        visits_[key_of(json.at("settings").get<TuneSettings>(), json.at("confirms"))].push_back(
            visit_from(json));
      } else if (const std::string difference = header_difference(json, here); !difference.empty()) {
        throw ConfigError(
            fmt::format("{} has measurements of another configuration, program or machine ({}); {}",
                        path.string(), difference, kWhatToDo));
      }
    }
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("{}:{} was not written by lockstep tune ({}); {}", path.string(), number,
                                one_line(error.what()), kWhatToDo));
  }
  found_ = std::max(number - 1, 0);
  lines.drop_cut_off_line();
  if (number == 0) lines.add(dumped(here));
}

std::optional<TuneVisit> TuneJournal::take(const TuneRequest& request) {
  std::deque<TuneVisit>& kept = visits_[key_of(request.settings, request.confirms)];
  if (kept.empty()) return std::nullopt;
  TuneVisit visit = std::move(kept.front());
  kept.pop_front();
  return visit;
}

void TuneJournal::append(const TuneRequest& request, const TuneVisit& visit) {
  TuneJson line = {{"settings", request.settings}, {"confirms", request.confirms}};
  line.update(as_json(visit));
  lines_->add(dumped(line));
}

std::string to_text(const TuneVisit& visit) { return dumped(as_json(visit)); }

TuneVisit visit_from_text(const std::string& text) { return visit_from(TuneJson::parse(text)); }

}  // namespace lockstep
