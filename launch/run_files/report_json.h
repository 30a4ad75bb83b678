// SPDX-License-Identifier: Apache-2.0
//
// Lines of metrics.jsonl and steps.jsonl as JSON, and the numbers in them as TensorBoard gets them.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "launch/run_files/event_record.h"
#include "launch/run_files/report.h"

namespace lockstep {

nlohmann::ordered_json json_of(const EpochReport& report);
nlohmann::ordered_json json_of(const StepLine& line);

// The numbers of such a line by their path behind the prefix, but for what tells its place.
std::vector<Scalar> scalars_of(const nlohmann::ordered_json& line, const std::string& prefix = "");

}  // namespace lockstep
