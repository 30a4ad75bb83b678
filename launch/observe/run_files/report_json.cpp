// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/run_files/report_json.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "launch/observe/account/account_json.h"
#include "launch/observe/run_files/json_fields.h"

namespace lockstep {
namespace {

// Rounds to microseconds to keep lines short: a line has ranks * buckets of these values.
std::vector<double> in_microseconds(std::vector<double> seconds) {
  for (double& each : seconds) each = std::round(each * 1e6) / 1e6;
  return seconds;
}

// Adds the numbers of a value and of nested objects, with their path as tag.
void add_numbers(const std::string& path, const nlohmann::ordered_json& value, std::vector<Scalar>& scalars) {
  if (value.is_number()) scalars.push_back({.tag = path, .value = value.get<double>()});
  if (!value.is_object()) return;
  for (const auto& [name, member] : value.items()) add_numbers(path + "/" + name, member, scalars);
}

nlohmann::ordered_json json_by_table(const auto& record) {
  nlohmann::ordered_json json;
  FieldWriter fields(json);
  fields_of(fields, record);
  return json;
}

}  // namespace

void fields_of(auto& fields, Is<StepLine> auto& line) {
  fields("epoch", line.epoch);
  fields.needed("step", line.step);
  fields("steps", line.steps);
  fields("loss", line.loss);
  fields("gradient_norm", line.gradient_norm);
  fields("learning_rate", line.learning_rate);
  fields("loss_scale", line.loss_scale);
  fields("samples_per_second", line.samples_per_second);
  fields("busy", line.busy);
  fields("peak", line.peak);
  fields("evaluation_seconds", line.evaluation_seconds);
  fields("without_core_seconds", line.without_core_seconds);
  fields("account", line.account);
}

void fields_of(auto& fields, Is<EvaluationMetrics> auto& metrics) {
  fields.some("top5", metrics.top5);
  fields.some("f1_macro", metrics.f1_macro);
  fields.columns(metrics.by_class, {{"f1_by_class", &ClassScore::f1},
                                    {"precision_by_class", &ClassScore::precision},
                                    {"recall_by_class", &ClassScore::recall}});
  fields.some("iou_mean", metrics.iou_mean);
  fields.some("iou_by_class", metrics.iou_by_class);
  fields.some("samples_by_class", metrics.samples_by_class);
  fields.matrix("confusion", metrics.confusion, metrics.classes);  // a row for each class
}

// Without its metrics.
void fields_of(auto& fields, Is<Evaluation> auto& evaluation) {
  fields("test_loss", evaluation.loss);
  fields("test_accuracy", evaluation.accuracy);
}

void fields_of(auto& fields, Is<EvaluationRecord> auto& record) {
  fields("epoch", record.epoch);
  fields.needed("step", record.step);
  fields_of(fields, record.evaluation);
  fields.flat(record.evaluation.metrics);
  fields("seconds", record.seconds);
  if (record.evaluation.metrics) fields("metrics_seconds", record.evaluation.metrics->seconds);
}

void fields_of(auto& fields, Is<ProcessorAccount> auto& account) {
  fields("compute", account.compute);
  fields("communication", account.communication);
  fields("data", account.data);
}

// Sums over the epoch, in seconds.
void fields_of(auto& fields, Is<EpochCommunication> auto& communication) {
  auto& mine = communication.mine;
  fields("steps", mine.steps);
  fields("exposed_seconds", mine.exposed);
  fields.object("exposed", true, [&](auto& exposed) {
    exposed("starved_seconds", mine.exposed_starved);
    exposed("late_seconds", mine.exposed_late);
    exposed("wire_seconds", mine.exposed_wire);
    exposed("rest_seconds", mine.exposed_rest);
  });
  fields("hidden_seconds", mine.hidden);
  const int late_rank = communication.late_rank();
  fields.derived("overlap", communication.overlap());
  fields.derived("wire_seconds", communication.wire());
  fields.derived("wire_bytes_per_second", communication.wire_bytes_per_second());
  fields.derived("late_seconds", communication.late());
  fields.derived("late_rank", late_rank < 0 ? std::nullopt : std::optional(late_rank));
  fields.list("by_rank", communication.by_rank, [&](auto& item, auto& rank, std::size_t i) {
    item("exposed_seconds", rank.exposed);
    item("hidden_seconds", rank.hidden);
    item("waited_seconds", rank.waited);
    item("wire_seconds", rank.wire);
    item("starved_seconds", rank.starved);
    item("no_core_seconds", rank.no_core);
    item.element("exposed_seconds_by_bucket", communication.exposed_by_bucket, i, in_microseconds);
  });
  fields.list("by_bucket", mine.buckets, [&](auto& item, auto& bucket, std::size_t i) {
    item.element("bytes", communication.bucket_bytes, i);
    item("lead_seconds", bucket.lead);
    item("starved_seconds", bucket.starved);
    item("late_seconds", bucket.late);
    item("wire_seconds", bucket.wire);
    item("exposed_seconds", bucket.exposed);
    item("hidden_seconds", bucket.hidden);
  });
}

void fields_of(auto& fields, Is<Advice> auto& advice) {
  fields("cause", advice.cause);
  fields("key", advice.key);
  fields("value", advice.value);
  fields("samples_per_second", advice.samples_per_second);
  fields("text", advice.text);
}

void fields_of(auto& fields, Is<Straggler> auto& straggler) {
  fields("rank", straggler.rank);
  fields("host", straggler.host);
  fields("since_step", straggler.since_step);
  fields("found_step", straggler.found_step);
  fields("seconds", straggler.seconds);
  fields("median_seconds", straggler.median_seconds);
}

void fields_of(auto& fields, Is<MoreRanks> auto& more) {
  fields("ranks", more.ranks);
  fields("samples_per_second", more.samples_per_second);
  fields("text", more.text);
}

void fields_of(auto& fields, Is<EpochReport> auto& report) {
  fields.needed("epoch", report.epoch);
  fields.needed("steps", report.step);
  fields("busy", report.busy);
  fields("peak", report.peak);
  fields("train_loss", report.train_loss);
  fields.flat(report.evaluation);
  fields("samples_per_second", report.samples_per_second);
  fields("learning_rate", report.learning_rate);
  fields("train_seconds", report.train_seconds);
  fields("evaluation_seconds", report.evaluation_seconds);
  fields("skipped_steps", report.skipped_steps);
  fields("loss_scale", report.loss_scale);
  fields("account", report.account);
  fields("account_steps", report.steps);
  fields("processor", report.processor);
  fields("busy_by_rank", report.busy_by_rank);
  fields.some("resident_bytes_by_rank", report.resident_bytes_by_rank);
  if (report.device_memory) fields.derived("device_memory", json_of(*report.device_memory));
  if (report.device) fields.derived("device", json_of(*report.device));
  fields.some("communication", report.communication);
  fields.object("communication", report.communication.has_value(),
                [&](auto& communication) { communication("advice", report.advice); });
  fields.some("steps_by_rank", report.steps_by_rank);  // on a ring
  fields.some("stragglers", report.stragglers);
  if (report.evaluation) fields.flat(report.evaluation->metrics);
  if (report.evaluation && report.evaluation->metrics) fields("metrics_seconds", report.metrics_seconds);
  fields.object("evaluations_within", report.evaluations_within > 0, [&](auto& within) {
    within("count", report.evaluations_within);
    within("seconds", report.within_seconds);
  });
  fields.some("more_ranks", report.more_ranks);
}

nlohmann::ordered_json json_of(const StepLine& line) { return json_by_table(line); }
nlohmann::ordered_json json_of(const EvaluationRecord& record) { return json_by_table(record); }
nlohmann::ordered_json json_of(const EpochReport& report) { return json_by_table(report); }

void add_metrics(const EvaluationMetrics& metrics, nlohmann::ordered_json& line) {
  FieldWriter fields(line);
  fields_of(fields, metrics);
}

template <typename Record>
Record record_from(const nlohmann::json& line) {
  Record record;
  FieldReader fields(line);
  fields_of(fields, record);
  return record;
}
template StepLine record_from(const nlohmann::json& line);
template EvaluationRecord record_from(const nlohmann::json& line);
template EpochReport record_from(const nlohmann::json& line);

std::vector<Scalar> scalars_of(const nlohmann::ordered_json& line, const std::string& prefix) {
  std::vector<Scalar> scalars;
  for (const auto& [name, value] : line.items())
    if (name != "epoch" && name != "step" && name != "steps" && name != "account_steps")
      add_numbers(prefix + name, value, scalars);
  return scalars;
}

}  // namespace lockstep
