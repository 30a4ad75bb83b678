// SPDX-License-Identifier: Apache-2.0
//
// Conflicts between values of a configuration that are each valid.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launch/program/config/config.h"

namespace lockstep {

struct ConfigConflict {
  std::string_view key;  // the key to report; it may not have been given
  std::string what;      // the value, the value it needs elsewhere, and why
};

// All conflicts. Each value alone is valid.
std::vector<ConfigConflict> conflicts_in(const Config& config);

}  // namespace lockstep
