// SPDX-License-Identifier: Apache-2.0
//
// Assigns each tensor of a planned network a block of the activation arena for as long as it is still read.
// Layers that are recomputed in backward free their blocks in between.
#pragma once

#include "models/network_plan.h"
#include "models/recompute.h"

namespace lockstep {

// `planned`: tensors with disjoint lifetimes share memory. `none`: each tensor has its own memory for the
// whole step. Both compute the same bits; compare them to distinguish a planning fault from a layer's fault.
enum class MemorySharing { planned, none };

// Sets the plan's blocks, times, arena, and what is recomputed, which must not be open. Can be called again.
void plan_memory(NetworkPlan& plan, const Recompute& recompute,
                 MemorySharing sharing = MemorySharing::planned);

}  // namespace lockstep
