// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/run_files/report_json.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "launch/observe/account/account_json.h"

namespace lockstep {
namespace {

// Rounds to microseconds to keep lines short: a line has ranks * buckets of these values.
std::vector<double> in_microseconds(std::vector<double> seconds) {
  for (double& each : seconds) each = std::round(each * 1e6) / 1e6;
  return seconds;
}

// Sums over the epoch, in seconds.
nlohmann::ordered_json json_of(const EpochCommunication& communication, const std::optional<Advice>& given) {
  nlohmann::ordered_json by_rank = nlohmann::ordered_json::array(), by_bucket = by_rank;
  for (std::size_t i = 0; i < communication.by_rank.size(); ++i) {
    const RankCommunication& rank = communication.by_rank[i];
    by_rank.push_back({{"exposed_seconds", rank.exposed},
                       {"hidden_seconds", rank.hidden},
                       {"waited_seconds", rank.waited},
                       {"wire_seconds", rank.wire},
                       {"starved_seconds", rank.starved},
                       {"no_core_seconds", rank.no_core}});
    if (i < communication.exposed_by_bucket.size())
      by_rank.back()["exposed_seconds_by_bucket"] = in_microseconds(communication.exposed_by_bucket[i]);
  }
  const LedgerSums& mine = communication.mine;
  for (std::size_t bucket = 0; bucket < mine.buckets.size(); ++bucket) {
    const BucketSums& sums = mine.buckets[bucket];
    by_bucket.push_back({{"bytes", communication.bucket_bytes[bucket]},
                         {"lead_seconds", sums.lead},
                         {"starved_seconds", sums.starved},
                         {"late_seconds", sums.late},
                         {"wire_seconds", sums.wire},
                         {"exposed_seconds", sums.exposed},
                         {"hidden_seconds", sums.hidden}});
  }
  nlohmann::ordered_json advice;  // null
  if (given) {
    advice = {{"cause", given->cause},
              {"key", given->key},
              {"value", given->value},
              {"samples_per_second", given->samples_per_second},
              {"text", given->text}};
  }
  return {{"steps", mine.steps},
          {"exposed_seconds", mine.exposed},
          {"exposed",
           {{"starved_seconds", mine.exposed_starved},
            {"late_seconds", mine.exposed_late},
            {"wire_seconds", mine.exposed_wire},
            {"rest_seconds", mine.exposed_rest}}},
          {"hidden_seconds", mine.hidden},
          {"overlap", communication.overlap()},
          {"wire_seconds", communication.wire()},
          {"wire_bytes_per_second", communication.wire_bytes_per_second()},
          {"late_seconds", communication.late()},
          {"late_rank", communication.late_rank() < 0 ? nlohmann::ordered_json()
                                                      : nlohmann::ordered_json(communication.late_rank())},
          {"by_rank", by_rank},
          {"by_bucket", by_bucket},
          {"advice", advice}};
}

// Adds the numbers of a value and of nested objects, with their path as tag.
void add_numbers(const std::string& path, const nlohmann::ordered_json& value, std::vector<Scalar>& scalars) {
  if (value.is_number()) scalars.push_back({.tag = path, .value = value.get<double>()});
  if (!value.is_object()) return;
  for (const auto& [name, member] : value.items()) add_numbers(path + "/" + name, member, scalars);
}

}  // namespace

nlohmann::ordered_json json_of(const StepLine& line) {
  return {{"epoch", line.epoch},
          {"step", line.step},
          {"steps", line.steps},
          {"loss", line.loss},
          {"gradient_norm", line.gradient_norm},
          {"learning_rate", line.learning_rate},
          {"loss_scale", line.loss_scale},
          {"samples_per_second", line.samples_per_second},
          {"busy", line.busy},
          {"peak", json_or_null(line.peak)},
          {"evaluation_seconds", line.evaluation_seconds},
          {"without_core_seconds", line.without_core_seconds},
          {"account", json_of(line.account)}};
}

nlohmann::ordered_json json_of(const EpochReport& report) {
  // nlohmann::json writes numbers that are not finite as null.
  nlohmann::ordered_json line{{"epoch", report.epoch},
                              {"steps", report.step},
                              {"busy", report.busy()},
                              {"peak", json_or_null(report.peak)},
                              {"train_loss", report.train_loss},
                              {"test_loss", nullptr},
                              {"test_accuracy", nullptr},
                              {"samples_per_second", report.samples_per_second},
                              {"learning_rate", report.learning_rate},
                              {"train_seconds", report.train_seconds},
                              {"evaluation_seconds", report.evaluation_seconds},
                              {"skipped_steps", report.skipped_steps},
                              {"loss_scale", report.loss_scale},
                              {"account", json_of(report.account)},
                              {"processor",
                               {{"compute", report.processor.compute},
                                {"communication", report.processor.communication},
                                {"data", report.processor.data}}}};
  if (report.evaluation) {
    line["test_loss"] = report.evaluation->loss;
    line["test_accuracy"] = report.evaluation->accuracy;
  } else {
    line.erase("test_loss");
    line.erase("test_accuracy");
  }
  line["busy_by_rank"] = report.busy_by_rank;
  if (!report.resident_bytes_by_rank.empty()) line["resident_bytes_by_rank"] = report.resident_bytes_by_rank;
  if (report.device_memory) line["device_memory"] = json_of(*report.device_memory);
  if (!report.device.empty()) line["device"] = nlohmann::ordered_json::parse(report.device);
  if (report.communication) line["communication"] = json_of(*report.communication, report.advice);
  if (!report.steps_by_rank.empty()) line["steps_by_rank"] = report.steps_by_rank;
  for (const Straggler& each : report.stragglers) {
    line["stragglers"].push_back({{"rank", each.rank},
                                  {"host", each.host},
                                  {"since_step", each.since_step},
                                  {"found_step", each.found_step},
                                  {"seconds", each.seconds},
                                  {"median_seconds", each.median_seconds}});
  }
  if (report.evaluation && report.evaluation->metrics) {
    add_metrics(*report.evaluation->metrics, line);
    line["metrics_seconds"] = report.metrics_seconds;
  }
  if (report.evaluations_within > 0)
    line["evaluations_within"] = {{"count", report.evaluations_within}, {"seconds", report.within_seconds}};
  if (const auto& more = report.more_ranks)
    line["more_ranks"] = {
        {"ranks", more->ranks}, {"samples_per_second", more->samples_per_second}, {"text", more->text}};
  return line;
}

std::vector<Scalar> scalars_of(const nlohmann::ordered_json& line, const std::string& prefix) {
  std::vector<Scalar> scalars;
  for (const auto& [name, value] : line.items())
    if (name != "epoch" && name != "step" && name != "steps") add_numbers(prefix + name, value, scalars);
  return scalars;
}

std::string to_json(const EpochReport& report) { return json_of(report).dump(); }

std::string to_json(const StepLine& line, double time) {
  nlohmann::ordered_json json = json_of(line);
  json["time"] = time;
  return json.dump();
}

}  // namespace lockstep
