// SPDX-License-Identifier: Apache-2.0
//
// Formats evaluation metrics for metrics.jsonl, evaluations.jsonl and the epoch's line, and advises on their
// cost.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "launch/metrics.h"

namespace lockstep {

// The result of an evaluation within an epoch.
struct EvaluationLine {
  std::int64_t step = 0;   // since the start of training
  std::int64_t epoch = 0;  // from 1
  double test_loss = 0;
  double test_accuracy = 0;  // fraction
  std::optional<EvaluationMetrics> metrics = {};
  double seconds = 0;  // of the whole evaluation
};

// The object in evaluations.jsonl: epoch, step, test_loss, test_accuracy, metrics, seconds, and, where there
// are metrics, metrics_seconds.
std::string to_json(const EvaluationLine& line);

// Adds top5, f1_macro, f1_by_class, precision_by_class, recall_by_class, and confusion (a row for each class,
// a column for each prediction). Omits metrics that were not requested.
void add_metrics(const EvaluationMetrics& metrics, nlohmann::ordered_json& line);
// "top5 93.10 %", "f1 0.871", for people.
void add_metrics(const EvaluationMetrics& metrics, std::vector<std::string>& parts);

// The cost of metrics in an epoch.
struct MetricPrice {
  double train_seconds = 0;
  double evaluation_seconds = 0;  // of all evaluations
  double within_seconds = 0;      // of those within the epoch
  double metrics_seconds = 0;     // of computing metrics, in all evaluations
  std::vector<std::string_view> names = {};
};
// Advises what to omit where metrics, or evaluations within the epoch, took more than 2 % of training and
// evaluation together; empty: nothing.
std::vector<std::string> price_of_metrics(const MetricPrice& price);

}  // namespace lockstep
