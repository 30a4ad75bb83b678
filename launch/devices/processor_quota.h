// SPDX-License-Identifier: Apache-2.0
//
// CPU quotas of control groups, versions 1 and 2: how much processor time a group of processes gets, however
// many cores it may use. Containers are limited so (docker run --cpus, Kubernetes' limits.cpu).
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace lockstep {

struct ProcessorQuota {
  std::uint64_t group =
      0;             // a number of the control group; processes of a machine that share one share the time
  double cores = 0;  // the time of so many cores
};

// Those of this process's control group and of each group around it that has a quota, the innermost first.
// Empty without a quota, and where the system does not say. root: of the file system, for tests.
std::vector<ProcessorQuota> processor_quotas(const std::filesystem::path& root = "/");

}  // namespace lockstep
