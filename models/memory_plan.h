// SPDX-License-Identifier: Apache-2.0
//
// Assigns each tensor of a planned network a block of the activation arena for as long as it is still read.
// Layers that are recomputed in backward free their blocks in between.
#pragma once

#include "models/network_plan.h"

namespace lockstep {

enum class Recompute { nothing, blocks };

// `planned`: tensors with disjoint lifetimes share memory. `none`: each tensor has its own memory for the
// whole step. Both compute the same bits; compare them to distinguish a planning fault from a layer's fault.
enum class MemorySharing { planned, none };

// Sets the plan's blocks, times, arena and recomputed nodes. Can be called again.
void plan_memory(NetworkPlan& plan, Recompute recompute, MemorySharing sharing = MemorySharing::planned);

}  // namespace lockstep
