// SPDX-License-Identifier: Apache-2.0
#include "core/system/control_groups.h"

#include <gtest/gtest.h>

#include "tests/control_group_tree.h"

namespace lockstep {
namespace {

std::vector<std::string> names_of(std::string_view controller, const ControlGroupTree& tree) {
  std::vector<std::string> names;
  for (const std::filesystem::path& folder : control_groups(controller, tree.root()))
    names.push_back(folder.lexically_relative(tree.root()).string());
  return names;
}

using Names = std::vector<std::string>;

TEST(ControlGroups, Version2ListsEnclosingGroupsInnermostFirst) {
  const ControlGroupTree tree;
  tree.put("proc/self/cgroup", "0::/job/step\n");
  tree.mount("/", "/sys/fs/cgroup", "cgroup2 cgroup2 rw,nsdelegate");
  const Names groups = {"sys/fs/cgroup/job/step", "sys/fs/cgroup/job", "sys/fs/cgroup"};
  EXPECT_EQ(names_of("memory", tree), groups);
  EXPECT_EQ(names_of("cpu", tree), groups);
}

TEST(ControlGroups, Version1ListsHierarchiesOfTheControllerOnly) {
  const ControlGroupTree tree;
  tree.put("proc/self/cgroup", "4:memory:/docker/ab\n3:cpu,cpuacct:/x\n0::/z\n");
  tree.mount("/docker/ab", "/sys/fs/cgroup/memory", "cgroup cgroup rw,memory");
  tree.mount("/", "/sys/fs/cgroup/cpu", "cgroup cgroup rw,cpu,cpuacct");
  EXPECT_EQ(names_of("memory", tree), Names{"sys/fs/cgroup/memory"});
  EXPECT_EQ(names_of("cpu", tree), (Names{"sys/fs/cgroup/cpu/x", "sys/fs/cgroup/cpu"}));
  EXPECT_EQ(names_of("pids", tree), Names{});
}

}  // namespace
}  // namespace lockstep
