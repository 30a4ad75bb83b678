// SPDX-License-Identifier: Apache-2.0
//
// Other libraries' all-reduces, for comparison.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>

#include "comm/world.h"

namespace lockstep {

// Adds up `count` floats of every rank, in place, and returns when the sums are there. Collective.
using AllReduce = std::function<void(float* data, std::size_t count)>;

// Gloo's over TCP on this node's loopback, as PyTorch's DistributedDataParallel uses it on CPUs; collective.
// Nothing where it was not found when this was built, or where ranks are on several nodes.
std::optional<AllReduce> gloo_all_reduce(World& world);

}  // namespace lockstep
