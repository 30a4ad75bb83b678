// SPDX-License-Identifier: Apache-2.0
//
// The table of layers that `lockstep profile` prints: a line for each layer and direction.
#pragma once

#include <span>
#include <string>

#include "launch/layer_profile.h"
#include "launch/terminal/terminal.h"

namespace lockstep {

// The first `shown` of all rows, below a line of titles. A terminal with too few columns gets short names of
// directions, explained in a line above, and the kernel's name beside the layer's, or below where the two are
// long.
std::string layer_table(std::span<const LayerProfile::Row> rows, std::size_t shown, const Terminal& terminal);

}  // namespace lockstep
