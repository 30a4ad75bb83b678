// SPDX-License-Identifier: Apache-2.0
//
// NodeMetrics: the figures of a job on one node, as metrics for Prometheus. One table of figures writes them
// and reads them back for `lockstep monitor`, which then shows the job as if it ran on this machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/observe/jobs/node_view.h"
#include "launch/observe/jobs/rank_state.h"
#include "launch/observe/monitor/host_load.h"

namespace lockstep {

// The number of warnings of one kind since this start of the training.
struct WarningCount {
  std::string_view kind, cause;
  std::int64_t count = 0;
};

struct NodeMetrics {
  RankIdentity job;             // of one of its ranks; the fields of a single rank are not used
  double interval_seconds = 1;  // between two samples
  NodeView view;                // has at most one job; its devices are those of the job
  HostFigures host = {};
  std::vector<WarningCount> warnings = {};  // those of rank 0; empty on other nodes
};

std::string to_prometheus(const NodeMetrics& metrics);

// Reads the text of to_prometheus(), possibly damaged or malicious. Empty if it has no rank. Without the
// figures of the host and warnings, and without texts on collectives.
std::optional<NodeMetrics> metrics_from(std::string_view text);

}  // namespace lockstep
