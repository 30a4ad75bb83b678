// SPDX-License-Identifier: Apache-2.0
//
// Flatten as a layer of a Network: [N, C, H, W] as [N, C * H * W]. A plain input is not copied.
#pragma once

#include <memory>

#include "models/planned_layer.h"

namespace lockstep {

std::unique_ptr<PlannedLayer> plan_flatten(Backend& backend, const Layout& input);

}  // namespace lockstep
