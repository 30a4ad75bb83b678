// SPDX-License-Identifier: Apache-2.0
#include "launch/program/devices/cores.h"

#include <algorithm>
#include <functional>
#include <thread>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

namespace lockstep {
namespace {

RankCores rank_on(const std::vector<int>& cores, int node = 0) {
  RankCores rank{.node = node, .machine_cores = 8};
  for (const int core : cores) CPU_SET(static_cast<std::size_t>(core), &rank.usable);
  return rank;
}

using Ranks = std::vector<RankCores>;
using Threads = std::vector<int>;
const std::vector<int> kAll = {0, 1, 2, 3, 4, 5, 6, 7};

TEST(DivideCores, UnboundRanksShareCores) {
  EXPECT_EQ(divide_cores(Ranks(1, rank_on(kAll)), 0), Threads{8});
  EXPECT_EQ(divide_cores(Ranks(2, rank_on(kAll)), 0), Threads(2, 4));
  EXPECT_EQ(divide_cores(Ranks(3, rank_on(kAll)), 0), Threads(3, 2));
  EXPECT_EQ(divide_cores(Ranks(3, rank_on({0, 1, 2})), 0), Threads(3, 1));
  EXPECT_EQ(divide_cores(Ranks(9, rank_on(kAll)), 0), Threads(9, 1));
}

TEST(DivideCores, BoundRanksKeepTheirCores) {
  EXPECT_EQ(divide_cores(Ranks{rank_on({0, 1, 2, 3}), rank_on({4, 5, 6, 7})}, 0), (Threads{4, 4}));
  EXPECT_EQ(divide_cores(Ranks{rank_on({0}), rank_on({1, 2, 3})}, 0), (Threads{1, 3}));
  // Two sockets with two ranks each.
  EXPECT_EQ(divide_cores(Ranks{rank_on({0, 1, 2, 3}), rank_on({0, 1, 2, 3}), rank_on({4, 5, 6, 7}),
                               rank_on({4, 5, 6, 7})},
                         0),
            Threads(4, 2));
  EXPECT_EQ(divide_cores(Ranks{rank_on({0, 1, 2}), rank_on({2, 3, 4})}, 0), (Threads{2, 2}));
}

TEST(DivideCores, NodesDoNotShareCores) {
  EXPECT_EQ(divide_cores(Ranks{rank_on(kAll, 0), rank_on({0, 1}, 1)}, 0), (Threads{8, 2}));
}

TEST(DivideCores, ConfiguredThreadsAreUsed) {
  EXPECT_EQ(divide_cores(Ranks(2, rank_on(kAll)), 6), Threads(2, 6));
}

RankCores with_quota(RankCores rank, double cores, std::uint64_t group = 1) {
  *std::ranges::find(rank.quotas, 0.0, &ProcessorQuota::cores) = {.group = group, .cores = cores};
  return rank;
}

TEST(DivideCores, RanksOfOneControlGroupShareItsQuota) {
  const RankCores all = rank_on(kAll);
  EXPECT_EQ(divide_cores(Ranks(1, with_quota(all, 3.5)), 0), Threads{3});
  EXPECT_EQ(divide_cores(Ranks(1, with_quota(all, 0.5)), 0), Threads{1});
  EXPECT_EQ(divide_cores(Ranks(1, with_quota(all, 16)), 0), Threads{8});
  EXPECT_EQ(divide_cores(Ranks(2, with_quota(all, 4)), 0), Threads(2, 2));
  EXPECT_EQ(divide_cores(Ranks{with_quota(all, 2, 1), with_quota(all, 4, 2)}, 0), (Threads{2, 4}));
  EXPECT_EQ(divide_cores(Ranks{with_quota(rank_on(kAll, 0), 3), with_quota(rank_on(kAll, 1), 3)}, 0),
            (Threads{3, 3}))
      << "group numbers are local to a node";
  // Two containers of two cores each in a pod of three.
  EXPECT_EQ(divide_cores(
                Ranks{with_quota(with_quota(all, 2, 1), 3, 9), with_quota(with_quota(all, 2, 2), 3, 9)}, 0),
            (Threads{1, 1}));
  EXPECT_EQ(divide_cores(Ranks(1, with_quota(all, 1)), 6), Threads{6}) << "the configured number is used";
}

std::string contention(const Ranks& ranks, std::int64_t wanted = 0) {
  return describe_contention(ranks, divide_cores(ranks, wanted));
}

TEST(Contention, ReportsTooManyRanksOrThreadsAndSingleCoreBinding) {
  EXPECT_EQ(contention(Ranks(2, rank_on(kAll))), "");
  EXPECT_EQ(contention(Ranks(2, rank_on(kAll)), 4), "");
  EXPECT_EQ(contention(Ranks{rank_on({0, 1}), rank_on({2, 3})}), "");
  EXPECT_TRUE(contention(Ranks(9, rank_on(kAll))).starts_with("9 ranks share 8 cores"));
  EXPECT_TRUE(contention(Ranks(2, rank_on(kAll)), 5).starts_with("10 threads of 2 ranks compute on 8 cores"));
  EXPECT_TRUE(contention(Ranks{rank_on({0}), rank_on({1, 2}), rank_on({3})})
                  .starts_with("ranks 0, 2 may use one core of 8"));
  RankCores alone = rank_on({0});
  alone.machine_cores = 1;
  EXPECT_EQ(contention(Ranks{alone}), "") << "there is no other core";
}

TEST(Contention, ReportsThreadsBeyondTheCpuQuota) {
  const RankCores limited = with_quota(rank_on(kAll), 2);
  EXPECT_EQ(contention(Ranks(1, limited)), "");
  EXPECT_EQ(contention(Ranks(2, limited)), "");
  EXPECT_TRUE(contention(Ranks(3, limited))
                  .starts_with("3 threads of 3 ranks compute on 8 cores, of which a CPU quota"));
  EXPECT_TRUE(
      contention(Ranks(1, limited), 4).starts_with("4 threads of 1 rank compute on 8 cores, of which"));
  EXPECT_EQ(contention(Ranks(1, with_quota(rank_on(kAll), 0.5))).substr(0, 50),
            "1 thread of 1 rank compute on 8 cores, of which a ");
}

TEST(Contention, IsReportedOnceForManyNodes) {
  const Ranks ranks = {rank_on({0}, 0), rank_on({0, 1}, 1), rank_on({0}, 2), rank_on({1}, 3)};
  const std::string text = contention(ranks);
  EXPECT_TRUE(text.starts_with("rank 0 may use one core of 8")) << text;
  EXPECT_TRUE(text.ends_with("(so it is on 2 more nodes)")) << text;
}

int niceness_of_this_thread() { return getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())); }

int niceness_of(Stream& stream) {
  int niceness = 0;
  stream.enqueue([&niceness] { niceness = niceness_of_this_thread(); });
  stream.synchronize();
  return niceness;
}

TEST(Niceness, AppliesOnlyToTheCommunicationThread) {
  const int before = niceness_of_this_thread();
  Stream communication(Device{}, StreamUse::communication);
  set_niceness(communication, 0);
  EXPECT_EQ(niceness_of(communication), before);
  set_niceness(communication, 19);
  EXPECT_EQ(niceness_of(communication), 19);
  EXPECT_EQ(niceness_of_this_thread(), before);
}

// The niceness is lowered for root, and for users that the system allows it.
TEST(Niceness, IsUnchangedWithoutPermission) {
  const int before = niceness_of_this_thread();
  Stream communication(Device{}, StreamUse::communication);
  set_niceness(communication, -20);
  const int now = niceness_of(communication);
  EXPECT_TRUE(now == -20 || now == before) << now;
}

// Runs on a separate thread, so that only its affinity changes.
void in_thread(const std::function<void()>& work) { std::thread(work).join(); }

cpu_set_t usable() {
  cpu_set_t set;
  sched_getaffinity(0, sizeof(set), &set);
  return set;
}

TEST(KeepNear, KeepsTheAllowedCoresThatAreNear) {
  in_thread([] {
    const cpu_set_t all = usable();
    std::size_t first = 0;
    while (!CPU_ISSET(first, &all)) ++first;
    cpu_set_t near = {};
    CPU_SET(first, &near);
    CPU_SET(CPU_SETSIZE - 1, &near);  // a processor that this machine lacks
    EXPECT_EQ(keep_near(near), 1);
    cpu_set_t left = usable();
    EXPECT_EQ(CPU_COUNT(&left), 1);
    EXPECT_TRUE(CPU_ISSET(first, &left));
    in_thread([&] {  // threads started there inherit the affinity
      left = usable();
      EXPECT_EQ(CPU_COUNT(&left), 1);
    });
  });
}

TEST(KeepNear, KeepsAllCoresIfNoneIsNear) {
  in_thread([] {
    const cpu_set_t all = usable();
    cpu_set_t far = {};
    CPU_SET(CPU_SETSIZE - 1, &far);
    EXPECT_EQ(keep_near(far), 0);
    const cpu_set_t left = usable();
    EXPECT_TRUE(CPU_EQUAL(&all, &left));
  });
}

}  // namespace
}  // namespace lockstep
