// SPDX-License-Identifier: Apache-2.0
//
// Evaluation metrics and communication as parts of an epoch's lines, and advice where metrics take long.
#pragma once

#include <string>
#include <vector>

#include "launch/train/clock/communication.h"
#include "launch/train/training_records.h"

namespace lockstep {

// Appends "top5 93.10 %" and "f1 0.871", each if it was computed.
void add_metrics(const EvaluationMetrics& metrics, std::vector<std::string>& parts);

// "comm 31.2 ms a step", "96.0 % hidden", "| wire 28.0 ms (5.1 GB/s)", and "| late rank 2: 1.3 ms" if one is.
std::vector<std::string> communication_parts(const EpochCommunication& communication);

// A sentence on metrics, and one on evaluations within the epoch, each if they took more than 2 % of the time
// of training and evaluation: what to omit, and the time that this saves.
std::vector<std::string> price_of_metrics(const EpochRecord& record);

}  // namespace lockstep
