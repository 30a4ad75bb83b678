// SPDX-License-Identifier: Apache-2.0
//
// Where the tensors of a planned network lie: each gets a block of the activation arena for as long as
// somebody still reads it. Blocks of layers that are recomputed in backward give their memory back in
// between.
#pragma once

#include "models/network_plan.h"

namespace lockstep {

enum class Recompute { nothing, blocks };

// Whether tensors that are not alive together may share memory. `none` tells a fault of the plan from one of
// a layer: it computes the same bits, each tensor in memory of its own from the first layer to the last.
enum class MemorySharing { planned, none };

// Fills in the plan's blocks, times, arena and recomputed nodes. Can be repeated.
void plan_memory(NetworkPlan& plan, Recompute recompute, MemorySharing sharing = MemorySharing::planned);

}  // namespace lockstep
