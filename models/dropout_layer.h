// SPDX-License-Identifier: Apache-2.0
//
// Dropout as a layer of a Network. Its mask counts a sample's elements in C, H, W order in every layout, so
// that it is the same on every backend; other layouts are first converted to plain.
#pragma once

#include <memory>

#include "models/planned_layer.h"

namespace lockstep {

std::unique_ptr<PlannedLayer> plan_dropout(Backend& backend, const DropoutOptions& options,
                                           const Layout& input);

}  // namespace lockstep
