// SPDX-License-Identifier: Apache-2.0
//
// Conflicts between values of a configuration that are each valid: the features of
// launch/train/compatibility.h, in the words of the keys.
#pragma once

#include <string>
#include <vector>

#include "launch/program/config/config.h"
#include "launch/train/compatibility.h"

namespace lockstep {

// All conflicts. Each text begins with the key to report, which may not have been given, and has its value,
// the value that it needs elsewhere, and the reason. Each value alone is valid.
std::vector<std::string> conflicts_in(const Config& config);

// A warning for each setting that has no effect, with the value that causes this and the one that it needs.
std::vector<std::string> settings_without_effect(const Config& config);

// True if the feature, which may be off, conflicts with nothing in this configuration.
bool could_turn_on(Feature feature, const Config& config);

// All rows of the table, for the page of keys.
std::string conflicts_as_markdown();

}  // namespace lockstep
