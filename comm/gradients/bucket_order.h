// SPDX-License-Identifier: Apache-2.0
//
// The order in which buckets are exchanged when the next forward pass waits for them one by one. Backward
// finishes the last layers first; forward needs the first layers first. So whenever the network is free, the
// next bucket is, among those with final gradients, the one that forward needs first. Priority scheduling
// decides this in every step (Jayarajan et al., "Priority-based Parameter Propagation for Distributed DNN
// Training", 2019; Peng et al., "A Generic Communication Scheduler for Distributed DNN Training
// Acceleration", 2019). Here it is decided once, from measured times, because all ranks must send in one
// order. A started exchange is not interrupted. Pure function.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace lockstep {

struct BucketTimes {
  double final_seconds = 0;  // since backward began
  double wire_seconds = 0;   // duration of its exchange
  std::size_t needed = 0;    // position in forward; the lowest is needed first
};

// Bucket indices in the order of their exchange.
std::vector<std::size_t> order_by_need(std::span<const BucketTimes> buckets);

}  // namespace lockstep
