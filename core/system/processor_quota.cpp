// SPDX-License-Identifier: Apache-2.0
#include "core/system/processor_quota.h"

#include <algorithm>
#include <fstream>

#include <sys/stat.h>

#include "core/system/control_groups.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

double cores_of(double quota, double period) { return quota > 0 && period > 0 ? quota / period : 0; }

// In cores; 0: none.
double quota_in(const fs::path& group) {
  double quota = 0, period = 0;
  if (std::ifstream file(group / "cpu.max"); file) {
    file >> quota >> period;  // "max" is no number
    return file ? cores_of(quota, period) : 0;
  }
  std::ifstream(group / "cpu.cfs_quota_us") >> quota;  // -1: none
  std::ifstream(group / "cpu.cfs_period_us") >> period;
  return cores_of(quota, period);
}

// Identifies the group; equal in every container of the machine.
std::uint64_t number_of(const fs::path& group) {
  struct stat status = {};
  if (stat(group.c_str(), &status) != 0) return 0;
  return status.st_dev * 0x9e3779b97f4a7c15u + status.st_ino;
}

}  // namespace

std::vector<ProcessorQuota> processor_quotas(const fs::path& root) {
  std::vector<ProcessorQuota> quotas;
  for (const fs::path& group : control_groups("cpu", root)) {
    const ProcessorQuota quota{.group = number_of(group), .cores = quota_in(group)};
    // A hierarchy may be mounted at several places.
    if (quota.cores > 0 && std::ranges::find(quotas, quota.group, &ProcessorQuota::group) == quotas.end())
      quotas.push_back(quota);
  }
  return quotas;
}

}  // namespace lockstep
