// SPDX-License-Identifier: Apache-2.0
//
// CPU quotas of control groups, versions 1 and 2: they limit the processor time of a group of processes, even
// if it may use more cores. Containers are limited this way (docker run --cpus, Kubernetes' limits.cpu).
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace lockstep {

struct ProcessorQuota {
  std::uint64_t group = 0;  // identifies the control group; its processes on a machine share the time
  double cores = 0;         // processor time, in cores
};

// Quotas of this process's control group and of each group that encloses it, the innermost first. Empty
// without a quota, or if the system does not report it. root: of the file system, for tests.
std::vector<ProcessorQuota> processor_quotas(const std::filesystem::path& root = "/");

}  // namespace lockstep
