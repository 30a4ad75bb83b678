// SPDX-License-Identifier: Apache-2.0
//
// Devices that a job holds and does not use: which, for how long, and why as far as it can be seen from
// outside.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/monitor/node_view.h"

namespace lockstep {

struct IdleDevice {
  double seconds = 0;
  std::string why;  // "no step for 95 s, stopped by a signal"
};

// Nothing where the device works, or has been idle for less than so many seconds. A rank that trains has to
// take a step now and then, however long one takes it, and to be busy in it; while it starts, saves or ends,
// the GPU itself says whether it works, where the driver tells; an evaluation counts as work unless the GPU
// says otherwise.
std::optional<IdleDevice> idle_device(const SeenRank& rank, const NodeView& view, double idle_seconds);

// GPUs that are not the rank's, where it has a context nevertheless, and on which nothing runs.
std::vector<DeviceContext> idle_contexts(const SeenRank& rank, const NodeView& view);

// "cuda:3 (0000:3b:00.0, NVIDIA H100)", "2 threads of the CPU".
std::string describe_device(const RankIdentity& rank);

}  // namespace lockstep
