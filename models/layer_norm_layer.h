// SPDX-License-Identifier: Apache-2.0
//
// Layer normalisation as a layer of a Network, over all features of each sample. Inputs in other layouts are
// first converted to plain.
#pragma once

#include <memory>

#include "models/planned_layer.h"

namespace lockstep {

std::unique_ptr<PlannedLayer> plan_layer_norm(const LayerContext& context, const LayerNormOptions& options,
                                              const Layout& input);

}  // namespace lockstep
