// SPDX-License-Identifier: Apache-2.0
//
// The links of a cluster of GPUs for NCCL's model: those of the command line, else published ones.
#pragma once

#include <string>
#include <vector>

#include "launch/program/plan/nccl_cost.h"

namespace lockstep {

struct SimulationFlags;

struct GpuLinks {
  NcclLinks links;
  std::vector<std::string> from;  // the source of each number, a line each
};

// --node-link is the bus bandwidth of a ring, and replaces the published figures of --gpu: NVLS is then not
// used. Without both, an H100 is assumed. Throws UsageError for several GPUs in a node where --gpu is one
// without published figures and --node-link is not given, and what parse_link_speed throws.
GpuLinks gpu_links(const SimulationFlags& flags);

}  // namespace lockstep
