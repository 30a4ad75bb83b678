// SPDX-License-Identifier: Apache-2.0
//
// The table of layers that `lockstep profile` prints: a line for each layer and direction.
#pragma once

#include <span>
#include <string>

#include "core/system/terminal.h"
#include "launch/observe/profile/layer_profile.h"

namespace lockstep {

double sum_of_milliseconds(std::span<const LayerProfile::Row> rows);

// The first `shown` rows, below a title line. On a narrow terminal, directions have short names, which a line
// above explains, and the kernel's name follows the layer's, or is on the next line if both are too long.
std::string layer_table(std::span<const LayerProfile::Row> rows, std::size_t shown, const Terminal& terminal);

}  // namespace lockstep
