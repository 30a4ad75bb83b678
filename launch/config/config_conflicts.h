// SPDX-License-Identifier: Apache-2.0
//
// Values of a configuration that are right alone and wrong together.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launch/config/config.h"

namespace lockstep {

struct ConfigConflict {
  std::string_view key;  // whose line is to blame, or is named where none was given
  std::string what;      // the value, what it is allowed with, and why
};

// All of them. Each value is right alone.
std::vector<ConfigConflict> conflicts_in(const Config& config);

}  // namespace lockstep
