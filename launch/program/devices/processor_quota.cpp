// SPDX-License-Identifier: Apache-2.0
#include "launch/program/devices/processor_quota.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include <sys/stat.h>

#include "core/text/text.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

bool lists(std::string_view words, std::string_view word) {
  return std::ranges::count(split_text(words, ','), word) > 0;
}

// The paths of this process's group in the hierarchies that may limit processors: "3:cpu,cpuacct:/a/b" of
// version 1, "0::/a/b" of version 2.
struct GroupPaths {
  std::optional<std::string> first, second;
};

GroupPaths group_paths(const fs::path& root) {
  GroupPaths paths;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t names = line.find(':'), path = line.find(':', names + 1);
    if (names == std::string::npos || path == std::string::npos) continue;
    const std::string controllers = line.substr(names + 1, path - names - 1);
    if (controllers.empty()) paths.second = line.substr(path + 1);
    if (lists(controllers, "cpu")) paths.first = line.substr(path + 1);
  }
  return paths;
}

// The path relative to its prefix `top`: "b" for "/a/b" and "/a". Empty optional if it is not below `top`.
std::optional<std::string> path_below(const std::string& path, const std::string& top) {
  if (top == "/") return path.substr(std::min<std::size_t>(1, path.size()));
  if (path == top) return "";
  if (!path.starts_with(top + '/')) return std::nullopt;
  return path.substr(top.size() + 1);
}

// A mounted hierarchy of control groups.
struct Hierarchy {
  fs::path mounted;
  std::string below;  // the path of this process's group in it
};

// A line of mountinfo: number, parent, device, root in the file system, mount point, options, .., "-", type,
// source, options of the file system.
std::optional<Hierarchy> hierarchy_of(const std::string& line, const GroupPaths& groups,
                                      const fs::path& root) {
  std::istringstream stream(line);
  const std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
  const auto dash = std::ranges::find(words, "-");
  if (dash - words.begin() < 6 || words.end() - dash < 4) return std::nullopt;
  const bool second = dash[1] == "cgroup2", first = dash[1] == "cgroup" && lists(dash[3], "cpu");
  const std::optional<std::string>& group = second ? groups.second : groups.first;
  if ((!first && !second) || !group) return std::nullopt;
  const auto below = path_below(*group, words[3]);
  if (!below) return std::nullopt;
  return Hierarchy{root / fs::path(words[4]).relative_path(), *below};
}

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
  const GroupPaths groups = group_paths(root);
  std::ifstream mounts(root / "proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const std::optional<Hierarchy> hierarchy = hierarchy_of(line, groups, root);
    if (!hierarchy) continue;
    for (fs::path below = hierarchy->below;; below = below.parent_path()) {
      const fs::path group = below.empty() ? hierarchy->mounted : hierarchy->mounted / below;
      const ProcessorQuota quota{.group = number_of(group), .cores = quota_in(group)};
      // A hierarchy may be mounted at several places.
      if (quota.cores > 0 && std::ranges::find(quotas, quota.group, &ProcessorQuota::group) == quotas.end())
        quotas.push_back(quota);
      if (below.empty()) break;
    }
  }
  return quotas;
}

}  // namespace lockstep
