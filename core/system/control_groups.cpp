// SPDX-License-Identifier: Apache-2.0
#include "core/system/control_groups.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>

#include "core/text/text.h"

namespace lockstep {
namespace {

bool lists(std::string_view words, std::string_view word) {
  return std::ranges::count(split_text(words, ','), word) > 0;
}

// The paths of this process's group in the hierarchies that may limit the controller's resource:
// "3:cpu,cpuacct:/a/b" of version 1, "0::/a/b" of version 2.
struct GroupPaths {
  std::optional<std::string> first, second;
};

GroupPaths group_paths(std::string_view controller, const std::filesystem::path& root) {
  GroupPaths paths;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t names = line.find(':'), path = line.find(':', names + 1);
    if (names == std::string::npos || path == std::string::npos) continue;
    const std::string controllers = line.substr(names + 1, path - names - 1);
    if (controllers.empty()) paths.second = line.substr(path + 1);
    if (lists(controllers, controller)) paths.first = line.substr(path + 1);
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
  std::filesystem::path mounted;
  std::string below;  // the path of this process's group in it
};

// A line of mountinfo: number, parent, device, root in the file system, mount point, options, .., "-", type,
// source, options of the file system.
std::optional<Hierarchy> hierarchy_of(const std::string& line, std::string_view controller,
                                      const GroupPaths& groups, const std::filesystem::path& root) {
  std::istringstream stream(line);
  const std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
  const auto dash = std::ranges::find(words, "-");
  if (dash - words.begin() < 6 || words.end() - dash < 4) return std::nullopt;
  const bool second = dash[1] == "cgroup2", first = dash[1] == "cgroup" && lists(dash[3], controller);
  const std::optional<std::string>& group = second ? groups.second : groups.first;
  if ((!first && !second) || !group) return std::nullopt;
  const auto below = path_below(*group, words[3]);
  if (!below) return std::nullopt;
  return Hierarchy{root / std::filesystem::path(words[4]).relative_path(), *below};
}

}  // namespace

std::vector<std::filesystem::path> control_groups(std::string_view controller,
                                                  const std::filesystem::path& root) {
  std::vector<std::filesystem::path> folders;
  const GroupPaths groups = group_paths(controller, root);
  std::ifstream mounts(root / "proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const std::optional<Hierarchy> hierarchy = hierarchy_of(line, controller, groups, root);
    if (!hierarchy) continue;
    for (std::filesystem::path below = hierarchy->below;; below = below.parent_path()) {
      folders.push_back(below.empty() ? hierarchy->mounted : hierarchy->mounted / below);
      if (below.empty()) break;
    }
  }
  return folders;
}

}  // namespace lockstep
