// SPDX-License-Identifier: Apache-2.0
//
// model.freeze: excludes layers of a graph from training.
#pragma once

#include <span>
#include <string>

#include "models/graph.h"

namespace lockstep {

// Freezes all layers of each prefix (Graph::freeze). Throws ConfigError for a prefix that no layer has, with
// the nearest known one, and if no layer is left to train.
void freeze_layers(Graph& graph, std::span<const std::string> prefixes);

}  // namespace lockstep
