// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "core/timeline.h"

namespace lockstep {

// Seconds by the names of phases, as all files of a run have them.
nlohmann::ordered_json json_of(const StepAccount& account);

}  // namespace lockstep
