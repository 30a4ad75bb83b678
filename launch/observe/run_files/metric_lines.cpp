// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/run_files/metric_lines.h"

#include <algorithm>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

constexpr double kWorthTelling = 0.02;  // share of an epoch's time

std::vector<double> numbers_of(const std::vector<ClassScore>& scores, double ClassScore::*number) {
  std::vector<double> numbers;
  for (const ClassScore& score : scores) numbers.push_back(score.*number);
  return numbers;
}

std::string rate_text(double bytes_per_second) {
  if (bytes_per_second >= 1e9) return fmt::format("{:.1f} GB/s", bytes_per_second * 1e-9);
  return fmt::format("{:.1f} MB/s", bytes_per_second * 1e-6);
}

}  // namespace

std::string to_json(const EvaluationRecord& record) {
  const std::optional<EvaluationMetrics>& metrics = record.evaluation.metrics;
  nlohmann::ordered_json json{{"epoch", record.epoch},
                              {"step", record.step},
                              {"test_loss", record.evaluation.loss},
                              {"test_accuracy", record.evaluation.accuracy}};
  if (metrics) add_metrics(*metrics, json);
  json["seconds"] = record.seconds;
  if (metrics) json["metrics_seconds"] = metrics->seconds;
  return json.dump();
}

void add_metrics(const EvaluationMetrics& metrics, nlohmann::ordered_json& line) {
  if (metrics.top5) line["top5"] = *metrics.top5;
  if (!metrics.by_class.empty()) {
    line["f1_macro"] = macro_f1(metrics.by_class);
    line["f1_by_class"] = numbers_of(metrics.by_class, &ClassScore::f1);
    line["precision_by_class"] = numbers_of(metrics.by_class, &ClassScore::precision);
    line["recall_by_class"] = numbers_of(metrics.by_class, &ClassScore::recall);
  }
  if (metrics.confusion.empty()) return;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  const std::int64_t classes = metrics.classes;
  for (auto row = metrics.confusion.begin(); row != metrics.confusion.end(); row += classes)
    rows.push_back(std::vector<std::int64_t>(row, row + classes));
  line["confusion"] = std::move(rows);
}

void add_metrics(const EvaluationMetrics& metrics, std::vector<std::string>& parts) {
  if (metrics.top5) parts.push_back(fmt::format("top5 {:.2f} %", 100 * *metrics.top5));
  if (!metrics.by_class.empty()) parts.push_back(fmt::format("f1 {:.3f}", macro_f1(metrics.by_class)));
}

std::vector<std::string> communication_parts(const EpochCommunication& communication) {
  const double steps = static_cast<double>(std::max<std::int64_t>(1, communication.mine.steps));
  const auto milliseconds = [&](double seconds) { return fmt::format("{:.1f} ms", 1e3 * seconds / steps); };
  std::vector<std::string> parts = {
      fmt::format("comm {} a step", milliseconds(communication.exposed() + communication.hidden())),
      fmt::format("{:.1f} % hidden", 100 * communication.overlap()),
      fmt::format("| wire {} ({})", milliseconds(communication.wire()),
                  rate_text(communication.wire_bytes_per_second()))};
  if (const int rank = communication.late_rank(); rank >= 0)
    parts.push_back(fmt::format("| late rank {}: {}", rank, milliseconds(communication.late())));
  return parts;
}

std::vector<std::string> price_of_metrics(const MetricPrice& price) {
  std::vector<std::string> advice;
  const double epoch = price.train_seconds + price.evaluation_seconds;
  if (!price.names.empty() && price.metrics_seconds > kWorthTelling * epoch)
    advice.push_back(fmt::format("metrics took {:.1f} % of the epoch: leaving {} out saves that",
                                 100 * price.metrics_seconds / epoch, fmt::join(price.names, ", ")));
  if (price.within_seconds > kWorthTelling * epoch)
    advice.push_back(fmt::format("evaluations took {:.1f} % of the epoch: run.metrics_every=0 saves {:.1f} %",
                                 100 * price.evaluation_seconds / epoch, 100 * price.within_seconds / epoch));
  return advice;
}

}  // namespace lockstep
