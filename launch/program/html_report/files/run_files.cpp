// SPDX-License-Identifier: Apache-2.0
#include "launch/program/html_report/files/run_files.h"

#include <algorithm>
#include <optional>
#include <sstream>

#include <nlohmann/json.hpp>

#define TOML_ASSERT(expression) static_cast<void>(0)
#include <toml++/toml.h>

#include "core/error.h"
#include "core/files/file_text.h"
#include "core/text/json_text.h"
#include "launch/observe/run_files/json_fields.h"
#include "launch/observe/run_files/report_json.h"
#include "launch/observe/run_files/run_folder.h"
#include "launch/program/config/config_keys.h"
#include "launch/program/config/toml_text.h"
#include "launch/train/checkpoint/plain_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kMetrics = "metrics.jsonl";
constexpr const char* kSteps = "steps.jsonl";
constexpr const char* kEvaluations = "evaluations.jsonl";
constexpr const char* kEvents = "events.jsonl";
constexpr const char* kConfig = "config.toml";
constexpr const char* kMachine = "run.json";
constexpr const char* kMonitor = "monitor.csv";

constexpr std::uint64_t kMostFileBytes = std::uint64_t{1} << 30;

// Empty if the file does not exist. The folder may come from an untrusted source.
std::optional<std::string> text_of_file(const fs::path& path) {
  std::error_code unknown;
  if (fs::symlink_status(path, unknown).type() == fs::file_type::not_found) return std::nullopt;
  return read_plain_file(path, kMostFileBytes);
}

// False for a path that is not a regular file.
bool exceeds_limit(const fs::path& path) {
  std::error_code unknown;
  return fs::is_regular_file(fs::symlink_status(path, unknown)) && plain_file_bytes(path) > kMostFileBytes;
}

// Class metrics can be large: up to 100 x 100 counts.
void drop_class_metrics(Evaluation& evaluation) {
  if (!evaluation.metrics) return;
  evaluation.metrics->by_class.clear();
  evaluation.metrics->iou_by_class.clear();
  evaluation.metrics->samples_by_class.clear();
  evaluation.metrics->confusion.clear();
}

// Appends a point. A training resumed from an earlier checkpoint repeats steps: the newer points replace the
// older ones.
template <typename Point>
void add_newest(const Point& point, std::vector<Point>& points) {
  while (!points.empty() && points.back().step >= point.step) points.pop_back();
  points.push_back(point);
}

// Calls what(object) with each line of a file of JSON lines.
template <typename What>
void for_each_object(std::string_view text, const std::string& name, const What& what) {
  for_each_line(text, [&](std::string_view line, std::size_t number, bool whole) {
    if (line.find_first_not_of(" \t") == std::string_view::npos) return;
    const Json object = Json::parse(line.begin(), line.end(), nullptr, false);
    try {
      if (object.is_discarded()) throw DataError("is not JSON");
      if (!object.is_object()) throw DataError("is not a JSON object");
      what(object);
    } catch (const DataError& error) {
      if (!whole) return;  // an active writer has not finished it
      throw DataError(
          fmt::format("{}:{}: this line {}; remove it, or restore the file", name, number, error.what()));
    }
  });
}

void add_json_facts(const std::string& path, const Json& value, std::vector<RunFact>& facts) {
  if (value.is_object())
    for (const auto& [name, member] : value.items())
      add_json_facts(path.empty() ? name : fmt::format("{}.{}", path, name), member, facts);
  else
    facts.emplace_back(path, value.is_string() ? value.get<std::string>() : dumped(value));
}

// In short form: 0.1, [1, 25, 1], strings without quotes.
std::string toml_value_text(const toml::node& node) {
  if (const auto word = node.value_exact<std::string>()) return *word;
  if (const auto number = node.value_exact<double>()) return fmt::format("{}", *number);
  std::string text;
  if (const toml::array* list = node.as_array()) {
    for (const toml::node& each : *list) text += (text.empty() ? "" : ", ") + toml_value_text(each);
    return '[' + text + ']';
  }
  std::ostringstream stream;
  node.visit([&](const auto& value) { stream << value; });
  return one_line(stream.str());
}

void add_toml_facts(const std::string& path, const toml::table& table, std::vector<RunFact>& facts) {
  for (const auto& [name, node] : table) {
    const std::string key = path.empty() ? std::string(name.str()) : fmt::format("{}.{}", path, name.str());
    if (const toml::table* section = node.as_table()) {
      add_toml_facts(key, *section, facts);
    } else {
      facts.emplace_back(
          key, detail::is_secret(key) ? detail::shown_secret(toml_value_text(node)) : toml_value_text(node));
    }
  }
}

std::vector<std::string> class_names_in(const std::vector<RunFact>& machine) {
  std::vector<std::string> names;
  const Json list = Json::parse(fact_named(machine, "dataset.class_names"), nullptr, false);
  if (!list.is_array()) return names;
  for (const Json& each : list)
    names.push_back(each.is_string()      ? each.get<std::string>()
                    : each.is_primitive() ? each.dump()
                                          : std::string());
  return names;
}

std::vector<EpochReport> read_epoch_lines(std::string_view text, const std::string& name) {
  std::vector<EpochReport> epochs;
  std::size_t evaluated = 0;  // the last epoch with an evaluation
  for_each_object(text, name, [&](const Json& line) {
    auto epoch = record_from<EpochReport>(line);
    if (epoch.communication && epoch.communication->mine.steps <= 0) epoch.communication.reset();
    if (epoch.evaluation) {
      if (evaluated < epochs.size() && epochs[evaluated].evaluation)
        drop_class_metrics(*epochs[evaluated].evaluation);
      evaluated = epochs.size();
    }
    epochs.push_back(std::move(epoch));
  });
  return epochs;
}

std::vector<EvaluationRecord> read_evaluation_lines(std::string_view text, const std::string& name) {
  std::vector<EvaluationRecord> evaluations;
  for_each_object(text, name, [&](const Json& line) {
    auto record = record_from<EvaluationRecord>(line);
    drop_class_metrics(record.evaluation);
    add_newest(record, evaluations);
  });
  return evaluations;
}

std::vector<EventLine> read_event_lines(std::string_view text, const std::string& name) {
  std::vector<EventLine> events;
  for_each_object(text, name, [&](const Json& line) {
    FieldReader fields(line);
    EventLine& event = events.emplace_back();
    fields("time", event.time);
    fields("step", event.step);
    fields("kind", event.kind);
    fields("cause", event.cause);
    fields("text", event.text);
  });
  return events;
}

std::vector<RunFact> read_machine_facts(std::string_view text, const std::string& name) {
  try {
    const auto document = nlohmann::ordered_json::parse(
        text.begin(), text.end(), depth_limit(100, name + ":1:", "; restore the file, or remove it"));
    if (!document.is_object())
      throw DataError(fmt::format("{}:1: is not a JSON object; restore the file, or remove it", name));
    std::vector<RunFact> facts;
    for (const auto& [member, value] : document.items())  // in the file's order; nested members are sorted
      add_json_facts(member, Json(value), facts);
    return facts;
  } catch (const nlohmann::json::parse_error& error) {
    const auto before = text.substr(0, std::min(error.byte, text.size()));
    throw DataError(fmt::format("{}:{}: is not JSON; restore the file, or remove it", name,
                                1 + std::ranges::count(before, '\n')));
  }
}

}  // namespace

std::string fact_named(const std::vector<RunFact>& facts, std::string_view name) {
  const auto found = std::ranges::find(facts, name, &RunFact::first);
  return found == facts.end() ? std::string() : found->second;
}

std::vector<StepLine> read_step_lines(std::string_view text, const std::string& name) {
  std::vector<StepLine> steps;
  for_each_object(text, name, [&](const Json& line) { add_newest(record_from<StepLine>(line), steps); });
  return steps;
}

std::vector<RunFact> read_config_facts(std::string_view text, const std::string& name) {
  const TomlText readable = readable_toml(text);
  if (!readable.errors.empty()) {
    const SyntaxError& error = readable.errors.front();
    throw DataError(fmt::format("{}:{}:{}: {}", name, error.line, error.column, one_line(error.what)));
  }
  std::vector<RunFact> facts;
  add_toml_facts("", toml::parse(readable.text), facts);
  return facts;
}

bool is_file_of_run(const fs::path& file, const fs::path& folder) {
  const fs::path whole = resolved_path(file);
  for (const char* name :
       {kMetrics, kSteps, kEvaluations, kEvents, kConfig, kMachine, kMonitor, kBestFile, kLastGoodFile}) {
    std::error_code absent;
    const fs::path own = folder / name;
    if (resolved_path(own) == whole || fs::equivalent(own, file, absent)) return true;
  }
  return false;
}

RunFolder read_run_folder(const fs::path& folder) {
  RunFolder run{.folder = folder};
  const fs::path metrics = folder / kMetrics;
  const std::optional<std::string> text = text_of_file(metrics);
  if (!text) {
    throw IoError(
        fmt::format("{} has no {}; name the folder of a run (its run.dir)", folder.string(), kMetrics));
  }
  run.epochs = read_epoch_lines(*text, metrics.string());
  const auto read = [&](const char* name, const auto& reader, auto& result) {
    const fs::path path = folder / name;
    if (const std::optional<std::string> found = text_of_file(path))
      result = reader(*found, path.string());
    else
      run.absent.emplace_back(name);
  };
  read(kSteps, read_step_lines, run.steps);
  read(kEvaluations, read_evaluation_lines, run.evaluations);
  std::erase(run.absent, kEvaluations);
  read(kEvents, read_event_lines, run.events);
  read(kConfig, read_config_facts, run.config);
  read(kMachine, read_machine_facts, run.machine);
  run.class_names = class_names_in(run.machine);
  run.monitor_exceeds_limit = exceeds_limit(folder / kMonitor);
  if (run.monitor_exceeds_limit)
    run.absent.emplace_back(kMonitor);
  else
    read(kMonitor, read_monitor_table, run.monitor);
  return run;
}

}  // namespace lockstep
