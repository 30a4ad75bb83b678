// SPDX-License-Identifier: Apache-2.0
//
// CPU quotas in the form that systems and containers show them, in simulated file trees.
#include "core/system/processor_quota.h"

#include <gtest/gtest.h>

#include "tests/control_group_tree.h"

namespace lockstep {
namespace {

struct QuotaTree : ControlGroupTree {
  std::vector<double> cores() const {
    std::vector<double> found;
    for (const ProcessorQuota& quota : processor_quotas(root())) found.push_back(quota.cores);
    return found;
  }
};

using Cores = std::vector<double>;

TEST(ProcessorQuota, Version2IncludesParentGroups) {
  const QuotaTree tree;
  tree.put("proc/self/cgroup", "0::/kubepods/pod7/box\n");
  tree.mount("/", "/sys/fs/cgroup", "cgroup2 cgroup2 rw,nsdelegate");
  tree.put("sys/fs/cgroup/kubepods/cpu.max", "max 100000\n");
  tree.put("sys/fs/cgroup/kubepods/pod7/cpu.max", "300000 100000\n");
  tree.put("sys/fs/cgroup/kubepods/pod7/box/cpu.max", "75000 50000\n");
  EXPECT_EQ(tree.cores(), (Cores{1.5, 3}));
}

TEST(ProcessorQuota, Version1IsRead) {
  const QuotaTree tree;
  tree.put("proc/self/cgroup", "9:name=systemd:/x\n4:memory:/y\n3:cpu,cpuacct:/docker/ab\n0::/z\n");
  tree.mount("/", "/sys/fs/cgroup/memory", "cgroup cgroup rw,memory");
  tree.mount("/", "/sys/fs/cgroup/cpu,cpuacct", "cgroup cgroup rw,cpu,cpuacct");
  tree.put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  tree.put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  tree.put("sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.cfs_quota_us", "250000\n");
  tree.put("sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(tree.cores(), Cores{2.5});
}

// In a container the file shows the host's path, and the group is mounted at the top.
TEST(ProcessorQuota, ContainerQuotaIsFoundAtTheMountPoint) {
  const QuotaTree tree;
  tree.put("proc/self/cgroup", "3:cpu:/docker/ab\n");
  tree.mount("/docker/other", "/elsewhere", "cgroup cgroup rw,cpu");
  tree.mount("/docker/ab", "/sys/fs/cgroup/cpu", "cgroup cgroup rw,cpu");
  tree.mount("/docker/ab", "/again", "cgroup cgroup rw,cpuset");
  for (const char* place : {"elsewhere", "sys/fs/cgroup/cpu", "again"}) {
    tree.put(std::string(place) + "/cpu.cfs_quota_us", place[0] == 's' ? "200000" : "100000");
    tree.put(std::string(place) + "/cpu.cfs_period_us", "100000");
  }
  EXPECT_EQ(tree.cores(), Cores{2});
}

TEST(ProcessorQuota, IsEmptyWithoutQuotaFiles) {
  const QuotaTree tree;
  EXPECT_EQ(tree.cores(), Cores{}) << "no /proc";
  tree.put("proc/self/cgroup", "0::/\nnonsense\n7:cpu\n");
  EXPECT_EQ(tree.cores(), Cores{}) << "no mounts";
  tree.put("proc/self/mountinfo", "1 2 3\n\n- - -\n");
  tree.mount("/", "/sys/fs/cgroup", "cgroup2 cgroup2 rw");
  EXPECT_EQ(tree.cores(), Cores{}) << "no such files";
  for (const char* text : {"max 100000", "", "nonsense", "-5 100000", "100000", "100000 0"}) {
    tree.put("sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(tree.cores(), Cores{}) << text;
  }
}

TEST(ProcessorQuota, ProcessesOfOneGroupGetTheSameNumber) {
  const QuotaTree tree;
  tree.put("proc/self/cgroup", "0::/a\n");
  tree.mount("/", "/sys/fs/cgroup", "cgroup2 cgroup2 rw");
  tree.put("sys/fs/cgroup/cpu.max", "300000 100000");
  tree.put("sys/fs/cgroup/a/cpu.max", "200000 100000");
  const auto a = processor_quotas(tree.root()), again = processor_quotas(tree.root());
  ASSERT_EQ(a.size(), 2u);
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(a[0].group, again[0].group);
  EXPECT_NE(a[0].group, a[1].group);
}

}  // namespace
}  // namespace lockstep
