// SPDX-License-Identifier: Apache-2.0
#include "launch/program/devices/device_choice.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using Devices = std::vector<int>;

std::vector<RankDevices> ranks_that_see(int ranks, const std::vector<std::string>& uuids) {
  return std::vector<RankDevices>(static_cast<std::size_t>(ranks),
                                  {.node = 0, .host = "one", .uuids = uuids});
}

std::vector<RankDevices> ranks_that_see_each(const std::vector<std::vector<std::string>>& uuids) {
  std::vector<RankDevices> ranks;
  for (const auto& visible : uuids) ranks.push_back({.node = 0, .host = "one", .uuids = visible});
  return ranks;
}

TEST(DealDevices, LocalRankPicksTheDeviceAmongTheVisibleOnes) {
  const auto ranks = ranks_that_see(3, {"a", "b", "c", "d"});
  EXPECT_EQ(deal_devices(ranks, DeviceSharing::refused), (Devices{0, 1, 2}));
  EXPECT_EQ(deal_devices(ranks, DeviceSharing::allowed), (Devices{0, 1, 2}));
}

TEST(DealDevices, RanksBeyondTheDevicesGetNoneOrShareRoundRobin) {
  const auto ranks = ranks_that_see(5, {"a", "b"});
  EXPECT_EQ(deal_devices(ranks, DeviceSharing::refused), (Devices{0, 1, -1, -1, -1}));
  EXPECT_EQ(deal_devices(ranks, DeviceSharing::allowed), (Devices{0, 1, 0, 1, 0}));
}

TEST(DealDevices, RanksGetNoneIfNoneIsVisible) {
  EXPECT_EQ(deal_devices(ranks_that_see(2, {}), DeviceSharing::allowed), (Devices{-1, -1}));
}

TEST(DealDevices, NodesHaveSeparateDevices) {
  std::vector<RankDevices> ranks = ranks_that_see(4, {"a", "b"});
  ranks[1].node = ranks[3].node = 1;  // the order of mpirun --map-by node
  EXPECT_EQ(deal_devices(ranks, DeviceSharing::refused), (Devices{0, 0, 1, 1}));
}

// With Slurm's --gpus-per-task and with MIG every rank sees one device, as number 0.
TEST(DealDevices, DeviceVisibleToOneRankBelongsToIt) {
  std::vector<RankDevices> ranks = ranks_that_see(2, {"a"});
  ranks[1].uuids = {"b"};
  EXPECT_EQ(deal_devices(ranks, DeviceSharing::refused), (Devices{0, 0}));
  ranks[1].uuids = {"a", "b"};
  EXPECT_EQ(deal_devices(ranks, DeviceSharing::refused), (Devices{0, 1}));
}

TEST(DealDevices, DevicesOfOtherJobsAreNotAssigned) {
  std::vector<RankDevices> ranks = ranks_that_see(2, {"a", "b", "c"});
  for (RankDevices& rank : ranks) rank.taken = {{"b", "another"}};
  EXPECT_EQ(deal_devices(ranks, DeviceSharing::refused), (Devices{0, 2}));
  for (RankDevices& rank : ranks) rank.taken = {{"a", "another"}, {"b", "another"}};
  EXPECT_EQ(deal_devices(ranks, DeviceSharing::refused), (Devices{2, -1}));
  EXPECT_EQ(deal_devices(ranks, DeviceSharing::allowed), (Devices{0, 1}))
      << "devices of other jobs may be shared";
}

TEST(DealDevices, RankKeepsItsDevice) {
  std::vector<RankDevices> ranks = ranks_that_see(3, {"a", "b", "c"});
  ranks[0].own = {"c"};
  ranks[2].own = {"a"};
  ranks[0].taken = ranks[1].taken = {{"a", "rank 2"}};
  ranks[1].taken["c"] = ranks[2].taken["c"] = "rank 0";
  keep_to_other_jobs(ranks);
  EXPECT_EQ(deal_devices(ranks, DeviceSharing::refused), (Devices{2, 1, 0}));
}

TEST(DealDevices, RanksThatSeeMoreLeaveDevicesToTheOthers) {
  const auto dealt = [](const std::vector<std::vector<std::string>>& uuids) {
    return deal_devices(ranks_that_see_each(uuids), DeviceSharing::refused);
  };
  EXPECT_EQ(dealt({{"a", "b"}, {"a"}}), (Devices{1, 0}));
  EXPECT_EQ(dealt({{"a", "b"}, {"b", "c"}, {"b"}}), (Devices{0, 1, 0}));
  EXPECT_EQ(dealt({{"a", "b"}, {"a"}, {"a"}}), (Devices{1, 0, -1}));
}

TEST(DealDevices, ClaimedDeviceIsLeftOnlyIfThereIsNoOtherWay) {
  std::vector<RankDevices> ranks = ranks_that_see_each({{"a", "c"}, {"b", "d"}, {"a", "b"}});
  ranks[0].own = {"a"};
  EXPECT_EQ(deal_devices(ranks, DeviceSharing::refused), (Devices{0, 1, 1}));
  ranks[1].own = {"b"};
  EXPECT_EQ(deal_devices(ranks, DeviceSharing::refused), (Devices{1, 0, 0}));
  ranks[0].taken = {{"c", "another"}};
  EXPECT_EQ(deal_devices(ranks, DeviceSharing::refused), (Devices{0, 1, 1}));
}

TEST(DealDevices, UnusableDevicesAreNotAssigned) {
  const auto ranks = ranks_that_see(2, {"", "a", "b"});
  for (const DeviceSharing sharing : {DeviceSharing::refused, DeviceSharing::allowed})
    EXPECT_EQ(deal_devices(ranks, sharing), (Devices{1, 2}));
  EXPECT_EQ(deal_devices(ranks_that_see(2, {"", "a"}), DeviceSharing::refused), (Devices{1, -1}));
}

TEST(DealDevices, LeastUsedDevicesComeFirst) {
  std::vector<RankDevices> ranks = ranks_that_see(4, {"a", "b", "c", "d"});
  for (RankDevices& rank : ranks) rank.use = {{"a", 9}, {"b", 1}, {"d", 1}};  // c is unused
  EXPECT_EQ(deal_devices(ranks, DeviceSharing::refused), (Devices{2, 1, 3, 0}));
  EXPECT_EQ(deal_devices(ranks, DeviceSharing::allowed), (Devices{2, 1, 3, 0}));
  for (RankDevices& rank : ranks) rank.taken = {{"c", "another"}};
  EXPECT_EQ(deal_devices(ranks, DeviceSharing::refused), (Devices{1, 3, 0, -1}));
}

TEST(DealDevices, SharingMeansTheSameDeviceOrSlicesOfOne) {
  const auto shared = [](const std::vector<RankDevices>& ranks) {
    return devices_are_shared(ranks, deal_devices(ranks, DeviceSharing::allowed));
  };
  EXPECT_FALSE(shared(ranks_that_see(2, {"GPU-a", "GPU-b"})));
  EXPECT_TRUE(shared(ranks_that_see(3, {"GPU-a", "GPU-b"})));
  std::vector<RankDevices> slices = ranks_that_see(2, {"MIG-a"});
  slices[1].uuids = {"MIG-b"};
  EXPECT_TRUE(shared(slices));
  slices[1].node = 1;
  EXPECT_FALSE(shared(slices));
}

TEST(UnusedDevices, AreVisibleAndNotAssigned) {
  const auto unused = [](const std::vector<RankDevices>& ranks) {
    return unused_devices(ranks, deal_devices(ranks, DeviceSharing::allowed));
  };
  EXPECT_EQ(unused(ranks_that_see(2, {"a", "b"})), "");
  EXPECT_EQ(unused(ranks_that_see(3, {"a", "b"})), "");
  EXPECT_EQ(unused(ranks_that_see(2, {})), "");
  EXPECT_EQ(unused(ranks_that_see(1, {"", "a"})), "") << "an unusable device does not count";
  std::vector<RankDevices> ranks = ranks_that_see(4, {"a", "b", "c", "d"});
  ranks[3] = {.node = 1, .host = "two", .uuids = {"a", "b"}};
  EXPECT_EQ(unused(ranks), "1 of 4 on one, 1 of 2 on two");
  ranks[2].uuids = {"c"};  // its own device, which its peers see, too
  EXPECT_EQ(unused(ranks), "1 of 4 on one, 1 of 2 on two");
  ranks[3].taken = {{"b", "another"}};
  EXPECT_EQ(unused(ranks), "1 of 4 on one");
  ranks = ranks_that_see(1, {"a"});
  ranks[0].taken = {{"a", "another"}};  // shared with that job
  EXPECT_EQ(unused(ranks), "");
}

TEST(TakenTable, NamesTheJobsOnTheNodeWithTooFewDevices) {
  std::vector<RankDevices> ranks = ranks_that_see(3, {"GPU-a", "GPU-b"});
  ranks[0].node = 1;
  ranks[0].taken = {{"GPU-x", "nobody here"}};
  ranks[1].taken = ranks[2].taken = {{"GPU-b", "process 7 on one"}};
  EXPECT_EQ(taken_table(ranks, deal_devices(ranks, DeviceSharing::refused)), "  GPU-b  process 7 on one\n");
  EXPECT_EQ(taken_table(ranks, deal_devices(ranks, DeviceSharing::allowed)), "");
}

TEST(DeviceTable, ShowsTheNodeWithTooFewDevices) {
  std::vector<RankDevices> ranks = ranks_that_see(2, {"GPU-a", "GPU-b"});
  for (const RankDevices& rank : ranks_that_see(2, {"GPU-c"})) {
    ranks.push_back(rank);
    ranks.back().node = 1;
    ranks.back().host = "two";
  }
  EXPECT_EQ(device_table(ranks, deal_devices(ranks, DeviceSharing::refused)),
            "  rank  local rank  device    two\n"
            "     2           0  cuda:0    GPU-c\n"
            "     3           1  none      \n");
}

}  // namespace
}  // namespace lockstep
