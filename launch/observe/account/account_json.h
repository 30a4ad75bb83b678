// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include <nlohmann/json_fwd.hpp>

#include "core/tensor/buffer.h"
#include "core/timeline.h"

namespace lockstep {

// Seconds by phase name, in the format of all files of a run.
nlohmann::ordered_json json_of(const StepAccount& account);
// Reads it back. A phase that is missing, or no number above 0, is 0.
StepAccount account_from(const nlohmann::json& json);
nlohmann::ordered_json json_of(const DeviceMemoryUse& use);
// null for an empty value.
nlohmann::ordered_json json_or_null(const std::optional<double>& value);

}  // namespace lockstep
