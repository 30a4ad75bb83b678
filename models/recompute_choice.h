// SPDX-License-Identifier: Apache-2.0
//
// Chooses what is recomputed from the memory that activations may take.
#pragma once

#include <cstddef>

#include "models/graph.h"
#include "models/memory_plan.h"
#include "models/network_plan.h"
#include "models/precision.h"

namespace lockstep {

struct RecomputeLimits {
  std::size_t arena_bytes = 0;
  Precision precision = Precision::fp32;
  MemorySharing sharing = MemorySharing::planned;
};

// Returns the choice with the least additional work among those whose arena fits: nothing, the graph's
// blocks, and segments of equal numbers of layers. If none fits, the one with the smallest arena. Plans the
// graph's plan repeatedly, and leaves it with an arbitrary choice.
Recompute choose_recompute(const Graph& graph, NetworkPlan& plan, const RecomputeLimits& limits);

}  // namespace lockstep
