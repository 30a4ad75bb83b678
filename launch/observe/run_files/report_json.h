// SPDX-License-Identifier: Apache-2.0
//
// Lines of metrics.jsonl and steps.jsonl as JSON, and their numbers as scalars for TensorBoard.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "launch/observe/run_files/report.h"
#include "launch/observe/tensorboard/event_record.h"

namespace lockstep {

nlohmann::ordered_json json_of(const EpochReport& report);
nlohmann::ordered_json json_of(const StepLine& line);

// The numbers of a line, with prefix + path as tag. Omits epoch, step and steps.
std::vector<Scalar> scalars_of(const nlohmann::ordered_json& line, const std::string& prefix = "");

}  // namespace lockstep
