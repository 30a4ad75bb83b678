// SPDX-License-Identifier: Apache-2.0
//
// model.freeze: the layers of a graph that a person does not want to be trained.
#pragma once

#include <span>
#include <string>

#include "models/graph.h"

namespace lockstep {

// Freezes all layers of each prefix (Graph::freeze). Throws ConfigError for one that no layer has, with the
// nearest that one has, and where nothing is left to train.
void freeze_layers(Graph& graph, std::span<const std::string> prefixes);

}  // namespace lockstep
