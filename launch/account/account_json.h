// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include <nlohmann/json_fwd.hpp>

#include "core/buffer.h"
#include "core/timeline.h"

namespace lockstep {

// Seconds by the names of phases, as all files of a run have them.
nlohmann::ordered_json json_of(const StepAccount& account);
nlohmann::ordered_json json_of(const DeviceMemoryUse& use);
// null where there is none.
nlohmann::ordered_json json_or_null(const std::optional<double>& value);

}  // namespace lockstep
