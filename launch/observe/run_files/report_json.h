// SPDX-License-Identifier: Apache-2.0
//
// Lines of metrics.jsonl, steps.jsonl and evaluations.jsonl as JSON, and their numbers as scalars for
// TensorBoard. report_json.cpp has one table of fields for each record, which is used to write and to read. A
// number that is not finite is null.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "launch/observe/run_files/report.h"
#include "launch/observe/tensorboard/event_record.h"

namespace lockstep {

nlohmann::ordered_json json_of(const EpochReport& report);
nlohmann::ordered_json json_of(const StepLine& line);  // without the time, which is its last member
nlohmann::ordered_json json_of(const EvaluationRecord& record);
// Adds the metrics that were requested.
void add_metrics(const EvaluationMetrics& metrics, nlohmann::ordered_json& line);

// Reads a line, also one of an older version. Values that the line lacks are as in json_fields.h. Throws
// DataError without a valid step, and, for an epoch, without its number. Record: one of the three.
template <typename Record>
Record record_from(const nlohmann::json& line);

// The numbers of a line, with prefix + path as tag. Omits epoch and the numbers of steps.
std::vector<Scalar> scalars_of(const nlohmann::ordered_json& line, const std::string& prefix = "");

}  // namespace lockstep
