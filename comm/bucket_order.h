// SPDX-License-Identifier: Apache-2.0
//
// In which order buckets leave when the next forward pass takes them one by one. Backward finishes the last
// layers first and forward needs the first layers first, so whenever the wire is free that bucket goes next,
// of those whose gradients are final, which forward needs first: what priority scheduling does step by step
// (Jayarajan et al., "Priority-based Parameter Propagation for Distributed DNN Training", 2019; Peng et al.,
// "A Generic Communication Scheduler for Distributed DNN Training Acceleration", 2019) is decided here once,
// from measured times, as all ranks must send in one order. A bucket is not interrupted. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace lockstep {

struct BucketTimes {
  double final_seconds = 0;  // since backward began
  double wire_seconds = 0;   // that its exchange takes
  std::size_t needed = 0;    // by forward: the least of all buckets first
};

// Numbers of buckets, in the order in which they leave.
std::vector<std::size_t> order_by_need(std::span<const BucketTimes> buckets);

}  // namespace lockstep
