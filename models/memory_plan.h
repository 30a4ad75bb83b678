// SPDX-License-Identifier: Apache-2.0
//
// Assigns each tensor of a planned network a block of the activation arena for as long as it is still read.
// Layers that are recomputed in backward free their blocks in between.
#pragma once

#include "models/network_plan.h"

namespace lockstep {

enum class Recompute { nothing, blocks };

// Whether tensors with disjoint lifetimes may share memory. `none` gives each tensor its own memory for the
// whole step and computes the same bits; use it to tell a planning fault from a layer's fault.
enum class MemorySharing { planned, none };

// Sets the plan's blocks, times, arena and recomputed nodes. Can be called again.
void plan_memory(NetworkPlan& plan, Recompute recompute, MemorySharing sharing = MemorySharing::planned);

}  // namespace lockstep
