// SPDX-License-Identifier: Apache-2.0
//
// The shipped presets, launch/presets/*.toml, as texts built into the program, so that a run needs no files
// beside it. CMake generates the source from presets.cpp.in.
#pragma once

#include <span>
#include <string_view>
#include <utility>

namespace lockstep {

// Name and TOML text of each, sorted by name.
std::span<const std::pair<std::string_view, std::string_view>> preset_texts();

}  // namespace lockstep
