// SPDX-License-Identifier: Apache-2.0
#include "launch/program/sweep/jobs/journal.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/text/json_text.h"
#include "launch/program/config/config.h"
#include "launch/program/config/toml_text.h"

namespace lockstep {
namespace {

using SweepJson = nlohmann::ordered_json;

constexpr const char* kSweepMark = "lockstep_sweep";
constexpr const char* kSweepRemedy = "set another dir in [sweep], or remove the file to start over";

SweepJson as_json(const SweepResult& result) {
  SweepJson json = {{"event", result.problem.empty() ? "end" : "failure"},
                    {"trial", result.job.trial},
                    {"rung", result.job.rung},
                    {"epochs", result.epochs},
                    {"steps", result.steps},
                    {"seconds", result.seconds}};
  if (!result.problem.empty()) {
    json["problem"] = result.problem;
    return json;
  }
  json["accuracy"] = result.measure.accuracy;
  json["loss"] = result.measure.loss;
  json["samples_per_second"] = result.measure.samples_per_second;
  json["parameters"] = result.cost.parameters;
  json["flops_per_sample"] = result.cost.flops_per_sample;
  return json;
}

SweepResult result_from(const SweepJson& json, const SweepJob& job) {
  SweepResult result{.job = job,
                     .epochs = json.at("epochs"),
                     .steps = json.at("steps"),
                     .seconds = json.at("seconds"),
                     .problem = json.value("problem", "")};
  if (result.problem.empty())
    result.measure = {.accuracy = json.at("accuracy"),
                      .loss = json.at("loss"),
                      .samples_per_second = json.at("samples_per_second")};
  result.cost = {.parameters = json.value("parameters", std::int64_t{0}),
                 .flops_per_sample = json.value("flops_per_sample", std::int64_t{0})};
  return result;
}

}  // namespace

SweepJournal::SweepJournal(const std::filesystem::path& path, const std::string& base,
                           const std::string& identity)
    : lines_(path) {
  read(base, identity);
  lines_.drop_cut_off_line();
  if (lines_.found().empty())
    lines_.add(dumped(SweepJson{{kSweepMark, 1}, {"sweep", identity}, {"base", base}}));
}

void SweepJournal::read(const std::string& base, const std::string& identity) {
  int number = 0;
  try {
    for (const std::string& line : lines_.found()) {
      ++number;
      const SweepJson json = SweepJson::parse(line);
      if (number == 1) {
        json.at(kSweepMark);
        std::string differs = first_difference(json.at("sweep"), identity);
        if (differs.empty()) differs = first_difference(json.at("base"), base);
        if (differs.empty()) continue;
        throw ConfigError(fmt::format("{} belongs to another sweep ({}); {}", lines_.path().string(), differs,
                                      kSweepRemedy));
      }
      const std::string event = json.at("event");
      if (event == "finished") {
        found_finish_ = true;
        continue;
      }
      const SweepJob job{.trial = json.at("trial"), .rung = json.at("rung")};
      Event& added = found_.emplace_back(Event{.job = job});
      if (event == "interrupted")
        added.interrupted_seconds = json.at("seconds");
      else if (event != "start")
        added.end = result_from(json, job);
    }
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("{}:{} was not written by lockstep sweep ({}); {}", lines_.path().string(),
                                number, one_line(error.what()), kSweepRemedy));
  }
}

void SweepJournal::started(const SweepJob& job, const TuneSettings& settings) const {
  lines_.add(dumped(SweepJson{
      {"event", "start"}, {"trial", job.trial}, {"rung", job.rung}, {"settings", SweepJson(settings)}}));
}

void SweepJournal::interrupted(const SweepJob& job, double seconds) const {
  lines_.add(dumped(
      SweepJson{{"event", "interrupted"}, {"trial", job.trial}, {"rung", job.rung}, {"seconds", seconds}}));
}

void SweepJournal::ended(const SweepResult& result) const { lines_.add(dumped(as_json(result))); }

void SweepJournal::finished() const { lines_.add(dumped(SweepJson{{"event", "finished"}})); }

}  // namespace lockstep
