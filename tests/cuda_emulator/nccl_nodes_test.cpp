// SPDX-License-Identifier: Apache-2.0
//
// Ranks on several nodes: NCCL_HOSTID is the node of a rank, devices belong to nodes, and links between nodes
// may differ from links within a node. Times of links are computed here, not measured.
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/cuda_emulator/nccl/handles.h"
#include "tests/cuda_emulator/nccl/model.h"
#include "tests/cuda_emulator/nccl_ranks.h"

namespace lockstep {
namespace {

using emulator::Call;
using emulator::Kind;
using emulator::Ring;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Call kMegabyte = {.kind = Kind::all_reduce, .type = ncclFloat32, .op = ncclSum, .count = 250'000};

// Reads a value that the device may be writing.
__attribute__((no_sanitize("thread"))) float glance_at(const float* data) {
  return *static_cast<const volatile float*>(data);
}

TEST(NcclNodes, TheTimeOfARingFollowsFromItsStepsAndBytes) {
  Ring ring{.ranks = 4, .nodes = 1, .within = {.latency = microseconds(10), .bytes_per_second = 100e6}};
  EXPECT_EQ(ring.least_time(kMegabyte), 6 * microseconds(10) + milliseconds(15));
  Call call = kMegabyte;
  call.kind = Kind::broadcast;
  EXPECT_EQ(ring.least_time(call), 3 * microseconds(10) + milliseconds(10));
  call.kind = Kind::all_gather;  // with this count from each rank
  EXPECT_EQ(ring.least_time(call), 3 * microseconds(10) + milliseconds(30));
  EXPECT_EQ(ring.least_time_of_transfers(1e6), microseconds(10) + milliseconds(10))
      << "directly to each peer";
  ring.ranks = 1;
  EXPECT_EQ(ring.least_time_of_transfers(1e6).count(), 0);
  EXPECT_EQ(ring.least_time(kMegabyte).count(), 0);
  EXPECT_EQ(ring.least_time(call).count(), 0);
}

TEST(NcclNodes, TheSlowestLinkDeterminesTheTimeOfARing) {
  Ring ring{.ranks = 4,
            .nodes = 2,
            .within = {.latency = microseconds(10), .bytes_per_second = 100e6},
            .between = {.latency = microseconds(500), .bytes_per_second = 10e6}};
  const auto latencies = 2 * (microseconds(500) + 2 * microseconds(10));
  EXPECT_EQ(ring.least_time(kMegabyte), latencies + milliseconds(150));
  ring.between.bytes_per_second = 200e6;  // faster than the links within a node
  EXPECT_EQ(ring.least_time(kMegabyte), latencies + milliseconds(15));
  ring.nodes = 4;  // no links within a node
  EXPECT_EQ(ring.least_time(kMegabyte), 6 * microseconds(500) + microseconds(7500));
}

TEST(NcclNodes, LinksBetweenNodesDefaultToThoseWithinANode) {
  const Settings settings = {"LOCKSTEP_EMULATED_NCCL_LATENCY=20us", "LOCKSTEP_EMULATED_NCCL_BANDWIDTH=1GB/s"};
  run_ranks(1, {.settings = settings}, [](Lobby&, int) {
    Ring ring = Ring::from_environment(4, 2);
    EXPECT_EQ(ring.between.latency, microseconds(20));
    EXPECT_EQ(ring.between.bytes_per_second, 1e9);
    setenv("LOCKSTEP_EMULATED_NCCL_NODE_LATENCY", "2ms", 1);
    setenv("LOCKSTEP_EMULATED_NCCL_NODE_BANDWIDTH", "200Mbit/s", 1);
    ring = Ring::from_environment(4, 2);
    EXPECT_EQ(ring.within.latency, microseconds(20));
    EXPECT_EQ(ring.within.bytes_per_second, 1e9);
    EXPECT_EQ(ring.between.latency, milliseconds(2));
    EXPECT_EQ(ring.between.bytes_per_second, 25e6);
  });
}

// The result is already in memory, where the host reads it, but the stream continues only after the time of
// the links.
TEST(NcclNodes, ACollectiveLastsAsLongAsItsLinks) {
  const Settings settings = {"LOCKSTEP_EMULATED_NCCL_NODE_LATENCY=600s",
                             "LOCKSTEP_EMULATED_HOST_ACCESS=allowed"};
  run_ranks(2, {.settings = settings}, [](Lobby& lobby, int number) {
    setenv("NCCL_HOSTID", std::to_string(number).c_str(), 1);
    TestRank rank(lobby, number, 2);
    float* data = rank.memory(std::vector<float>(10, 1.0f));
    EXPECT_EQ(rank.all_reduce(data, 10), ncclSuccess);
    while (glance_at(data + 9) != 2.0f) std::this_thread::sleep_for(milliseconds(1));
    rank.barrier();
    EXPECT_EQ(cudaStreamQuery(rank.stream), cudaErrorNotReady);
    rank.barrier();
    EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
    rank.comm = nullptr;
  });
}

TEST(NcclNodes, TwoRanksOnOneDeviceOfANodeAreRefused) {
  run_ranks(3, {}, [](Lobby& lobby, int number) {
    TestRank rank(lobby, number, 3, number == 0 ? 0 : 1);
    EXPECT_EQ(rank.comm, nullptr);
    EXPECT_EQ(rank.joined, number == 0 ? ncclRemoteError : ncclInvalidUsage);
    const std::string said = ncclGetLastError(nullptr);
    EXPECT_NE(said.find("Duplicate GPU detected : rank 1 and rank 2 both on CUDA device 1"),
              std::string::npos)
        << said;
  });
}

TEST(NcclNodes, EachNodeHasItsOwnDevices) {
  run_ranks(4, {}, [](Lobby& lobby, int number) {
    setenv("NCCL_HOSTID", number < 2 ? "first" : "second", 1);
    TestRank rank(lobby, number, 4, number % 2);
    ASSERT_EQ(rank.joined, ncclSuccess);
    EXPECT_EQ(emulator::find_handle(rank.comm)->ring().nodes, 2);
    float* data = rank.memory(std::vector<float>(1000, static_cast<float>(number)));
    EXPECT_EQ(rank.all_reduce(data, 1000), ncclSuccess);
    for (const float sum : rank.read(data, 1000)) ASSERT_EQ(sum, 6.0f);
  });
}

}  // namespace
}  // namespace lockstep
