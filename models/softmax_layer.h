// SPDX-License-Identifier: Apache-2.0
//
// Softmax over channels as a layer inside a Network. Inputs in other layouts are first converted to plain.
#pragma once

#include <memory>

#include "models/planned_layer.h"

namespace lockstep {

std::unique_ptr<PlannedLayer> plan_softmax(Backend& backend, const Layout& input);

}  // namespace lockstep
