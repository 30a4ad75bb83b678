// SPDX-License-Identifier: Apache-2.0
//
// Devices that a job holds but does not use: which, for how long, and the externally visible reason.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/observe/jobs/node_view.h"

namespace lockstep {

struct IdleDevice {
  double seconds = 0;
  std::string why;  // "no step for 95 s, stopped by a signal"
};

// Empty if the device works, or has been idle for less than `idle_seconds`. A training rank works if it
// completes steps (the limit is at least three times its step time) and is busy in them. A rank that starts,
// saves or ends works if the driver reports a utilization above 0; one that evaluates works unless the driver
// reports 0. A stopped rank does not work.
std::optional<IdleDevice> idle_device(const SeenRank& rank, const NodeView& view, double idle_seconds);

// GPUs other than the rank's own on which it has a context, and on which nothing runs.
std::vector<DeviceContext> idle_contexts(const SeenRank& rank, const NodeView& view);

// "cuda:3 (0000:3b:00.0, NVIDIA H100)", "2 threads of the CPU".
std::string describe_device(const RankIdentity& rank);

}  // namespace lockstep
