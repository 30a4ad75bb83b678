// SPDX-License-Identifier: Apache-2.0
#include "launch/program/html_report/run_files.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <sstream>

#include <nlohmann/json.hpp>
#define TOML_ASSERT(expression) static_cast<void>(0)
#include <toml++/toml.h>

#include "core/error.h"
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

double number_in(const Json& object, std::string_view name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : kNotTold;
}

std::string word_in(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// The objects among the elements of a list.
std::vector<Json> objects_in(const Json& object, const char* name) {
  std::vector<Json> objects;
  const auto found = object.find(name);
  if (found == object.end() || !found->is_array()) return objects;
  std::ranges::copy_if(*found, std::back_inserter(objects),
                       [](const Json& each) { return each.is_object(); });
  return objects;
}

// The elements of a list; NaN for elements that are not numbers.
std::vector<double> numbers_in(const Json& list) {
  std::vector<double> numbers;
  if (list.is_array())
    for (const Json& each : list) numbers.push_back(each.is_number() ? each.get<double>() : kNotTold);
  return numbers;
}

std::vector<double> numbers_in(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() ? numbers_in(*found) : std::vector<double>();
}

const Json& object_in(const Json& object, const char* name) {
  static const Json kNone = Json::object();
  const auto found = object.find(name);
  return found != object.end() && found->is_object() ? *found : kNone;
}

StepAccount account_in(const Json& line) {
  const Json& told = object_in(line, "account");
  StepAccount account;
  for (std::size_t phase = 0; phase < kPhases; ++phase) {
    const double seconds = number_in(told, name_of(static_cast<Phase>(phase)));
    if (seconds > 0) account.seconds[phase] = seconds;
  }
  return account;
}

double exposed_share(const StepAccount& account) {
  return account.total() > 0 ? account[Phase::exposed_communication] / account.total() : kNotTold;
}

ClassMetrics classes_in(const Json& line) {
  ClassMetrics classes{.f1 = numbers_in(line, "f1_by_class"),
                       .precision = numbers_in(line, "precision_by_class"),
                       .recall = numbers_in(line, "recall_by_class")};
  const auto found = line.find("confusion");
  if (found == line.end() || !found->is_array()) return classes;
  for (const Json& row : *found) classes.confusion.push_back(numbers_in(row));
  const auto fits = [&](const std::vector<double>& row) { return row.size() == classes.confusion.size(); };
  if (!std::ranges::all_of(classes.confusion, fits)) classes.confusion.clear();
  return classes;
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

double needed_number(const Json& object, const char* name) {
  const double value = number_in(object, name);
  if (!(value >= 0 && value < 1e15)) throw DataError(fmt::format("has no valid number {}", name));
  return value;
}

CommunicationLine communication_in(const Json& line) {
  const Json& told = object_in(line, "communication");
  CommunicationLine communication{.steps = number_in(told, "steps"), .overlap = number_in(told, "overlap")};
  if (!(communication.steps > 0)) return {};
  for (const Json& rank : objects_in(told, "by_rank")) {
    communication.by_rank.push_back({.exposed = number_in(rank, "exposed_seconds"),
                                     .hidden = number_in(rank, "hidden_seconds"),
                                     .waited = number_in(rank, "waited_seconds"),
                                     .wire = number_in(rank, "wire_seconds"),
                                     .starved = number_in(rank, "starved_seconds"),
                                     .no_core = number_in(rank, "no_core_seconds"),
                                     .exposed_by_bucket = numbers_in(rank, "exposed_seconds_by_bucket")});
  }
  for (const Json& bucket : objects_in(told, "by_bucket")) {
    communication.by_bucket.push_back({.bytes = number_in(bucket, "bytes"),
                                       .exposed = number_in(bucket, "exposed_seconds"),
                                       .hidden = number_in(bucket, "hidden_seconds"),
                                       .late = number_in(bucket, "late_seconds"),
                                       .wire = number_in(bucket, "wire_seconds"),
                                       .starved = number_in(bucket, "starved_seconds")});
  }
  return communication;
}

EpochLine epoch_in(const Json& line) {
  EpochLine epoch{.epoch = needed_number(line, "epoch"),
                  .steps = needed_number(line, "steps"),
                  .train_loss = number_in(line, "train_loss"),
                  .test_loss = number_in(line, "test_loss"),
                  .test_accuracy = number_in(line, "test_accuracy"),
                  .samples_per_second = number_in(line, "samples_per_second"),
                  .learning_rate = number_in(line, "learning_rate"),
                  .loss_scale = number_in(line, "loss_scale"),
                  .train_seconds = number_in(line, "train_seconds"),
                  .evaluation_seconds = number_in(line, "evaluation_seconds"),
                  .skipped_steps = number_in(line, "skipped_steps"),
                  .busy = number_in(line, "busy"),
                  .peak = number_in(line, "peak"),
                  .top5 = number_in(line, "top5"),
                  .f1_macro = number_in(line, "f1_macro"),
                  .resident_bytes_by_rank = numbers_in(line, "resident_bytes_by_rank"),
                  .classes = classes_in(line),
                  .busy_by_rank = numbers_in(line, "busy_by_rank"),
                  .account = account_in(line),
                  .communication = communication_in(line)};
  epoch.exposed = exposed_share(epoch.account);
  if (const Json& advice = object_in(object_in(line, "communication"), "advice"); !advice.empty()) {
    epoch.advice.push_back({.cause = word_in(advice, "cause"),
                            .key = word_in(advice, "key"),
                            .value = word_in(advice, "value"),
                            .text = word_in(advice, "text"),
                            .samples_per_second = number_in(advice, "samples_per_second")});
  }
  for (const Json& straggler : objects_in(line, "stragglers")) {
    epoch.stragglers.push_back({.rank = number_in(straggler, "rank"),
                                .since_step = number_in(straggler, "since_step"),
                                .found_step = number_in(straggler, "found_step"),
                                .seconds = number_in(straggler, "seconds"),
                                .median_seconds = number_in(straggler, "median_seconds"),
                                .host = word_in(straggler, "host")});
  }
  return epoch;
}

void add_json_facts(const std::string& path, const Json& value, std::vector<RunFact>& facts) {
  if (value.is_object()) {
    for (const auto& [name, member] : value.items())
      add_json_facts(path.empty() ? name : fmt::format("{}.{}", path, name), member, facts);
  } else {
    facts.emplace_back(path, value.is_string() ? value.get<std::string>()
                                               : value.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
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
  const auto found = std::ranges::find(machine, "dataset.class_names", &RunFact::first);
  if (found == machine.end()) return names;
  const Json list = Json::parse(found->second, nullptr, false);
  if (!list.is_array()) return names;
  for (const Json& each : list) names.push_back(each.is_string() ? each.get<std::string>() : each.dump());
  return names;
}

}  // namespace

std::vector<EpochLine> read_epoch_lines(std::string_view text, const std::string& name) {
  std::vector<EpochLine> epochs;
  for_each_object(text, name, [&](const Json& line) {
    EpochLine epoch = epoch_in(line);
    if (!epochs.empty()) {
      ClassMetrics before = std::exchange(epochs.back().classes, {});
      if (!epoch.evaluated()) epoch.classes = std::move(before);
    }
    epochs.push_back(std::move(epoch));
  });
  return epochs;
}

std::vector<StepPoint> read_step_lines(std::string_view text, const std::string& name) {
  std::vector<StepPoint> steps;
  for_each_object(text, name, [&](const Json& line) {
    StepPoint step{.step = needed_number(line, "step"),
                   .time = number_in(line, "time"),
                   .loss = number_in(line, "loss"),
                   .learning_rate = number_in(line, "learning_rate"),
                   .loss_scale = number_in(line, "loss_scale"),
                   .gradient_norm = number_in(line, "gradient_norm"),
                   .samples_per_second = number_in(line, "samples_per_second"),
                   .busy = number_in(line, "busy"),
                   .peak = number_in(line, "peak"),
                   .account = account_in(line)};
    step.exposed = exposed_share(step.account);
    add_newest(step, steps);
  });
  return steps;
}

std::vector<EvaluationPoint> read_evaluation_lines(std::string_view text, const std::string& name) {
  std::vector<EvaluationPoint> evaluations;
  for_each_object(text, name, [&](const Json& line) {
    add_newest(EvaluationPoint{.step = needed_number(line, "step"),
                               .test_loss = number_in(line, "test_loss"),
                               .test_accuracy = number_in(line, "test_accuracy"),
                               .top5 = number_in(line, "top5"),
                               .f1_macro = number_in(line, "f1_macro")},
               evaluations);
  });
  return evaluations;
}

std::vector<EventLine> read_event_lines(std::string_view text, const std::string& name) {
  std::vector<EventLine> events;
  for_each_object(text, name, [&](const Json& line) {
    events.push_back({.time = number_in(line, "time"),
                      .step = number_in(line, "step"),
                      .kind = word_in(line, "kind"),
                      .cause = word_in(line, "cause"),
                      .text = word_in(line, "text")});
  });
  return events;
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

std::vector<RunFact> read_machine_facts(std::string_view text, const std::string& name) {
  try {
    const auto document = nlohmann::ordered_json::parse(text.begin(), text.end());
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

std::vector<fs::path> files_of_run(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const char* name : {kMetrics, kSteps, kEvaluations, kEvents, kConfig, kMachine, kMonitor})
    files.push_back(folder / name);
  return files;
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
  read(kMonitor, read_monitor_table, run.monitor);
  return run;
}

}  // namespace lockstep
