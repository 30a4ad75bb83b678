// SPDX-License-Identifier: Apache-2.0
//
// Layers of networks that have an output for each pixel: nearest-neighbour upsampling, and concatenation of
// channels. Inputs in other layouts are first reordered.
#pragma once

#include "models/planned_layer.h"

namespace lockstep {

std::unique_ptr<PlannedLayer> plan_upsampling(Backend& backend, std::int64_t factor, const Layout& input);
std::unique_ptr<PlannedLayer> plan_concatenation(Backend& backend, const Layout& a, const Layout& b);

}  // namespace lockstep
