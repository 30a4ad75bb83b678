// SPDX-License-Identifier: Apache-2.0
//
// What is written of metrics: in lines of metrics.jsonl and evaluations.jsonl, on the epoch's line, and what
// they cost.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "launch/metrics.h"

namespace lockstep {

// Of an evaluation within an epoch.
struct EvaluationLine {
  std::int64_t step = 0;   // since the start of training
  std::int64_t epoch = 0;  // from 1
  double test_loss = 0;
  double test_accuracy = 0;  // fraction
  std::optional<EvaluationMetrics> metrics = {};
  double seconds = 0;  // that all of it took
};

// The object evaluations.jsonl gets: epoch, step, test_loss, test_accuracy, metrics, seconds, and of
// metrics metrics_seconds.
std::string to_json(const EvaluationLine& line);

// top5, f1_macro, and by class precision_by_class, recall_by_class and f1_by_class; confusion, a row for each
// class, by prediction. What is not asked for is not there.
void add_metrics(const EvaluationMetrics& metrics, nlohmann::ordered_json& line);
// "top5 93.10 %", "f1 0.871", for people.
void add_metrics(const EvaluationMetrics& metrics, std::vector<std::string>& parts);

// Of an epoch, in seconds.
struct MetricPrice {
  double train_seconds = 0;
  double evaluation_seconds = 0;  // of all evaluations
  double within_seconds = 0;      // of those within the epoch
  double metrics_seconds = 0;     // of counting, in all evaluations
  std::vector<std::string_view> names = {};
};
// What to leave out, where metrics, or evaluations within the epoch, took more than 2 % of training and
// evaluation together.
std::vector<std::string> price_of_metrics(const MetricPrice& price);

}  // namespace lockstep
