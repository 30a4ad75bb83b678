// SPDX-License-Identifier: Apache-2.0
//
// Formats evaluation metrics and communication for the epoch's line. Advises what to omit if metrics take
// long.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/train/clock/communication.h"
#include "launch/train/training_records.h"

namespace lockstep {

// "top5 93.10 %", "f1 0.871", for people.
void add_metrics(const EvaluationMetrics& metrics, std::vector<std::string>& parts);

// "comm 31.2 ms a step, 96 % hidden", "| wire 28.0 ms (5.1 GB/s)", "| late rank 2: 1.3 ms": parts of a line.
std::vector<std::string> communication_parts(const EpochCommunication& communication);

// The cost of metrics in an epoch.
struct MetricPrice {
  double train_seconds = 0;
  double evaluation_seconds = 0;  // all evaluations
  double within_seconds = 0;      // evaluations within the epoch
  double metrics_seconds = 0;     // computing metrics, in all evaluations
  std::vector<std::string_view> names = {};
};
// Advises what to omit where metrics, or evaluations within the epoch, took more than 2 % of training and
// evaluation together; otherwise returns nothing.
std::vector<std::string> price_of_metrics(const MetricPrice& price);

}  // namespace lockstep
