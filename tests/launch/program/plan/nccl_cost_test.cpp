// SPDX-License-Identifier: Apache-2.0
#include "launch/program/plan/nccl_cost.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

constexpr double kBytes = 1e9;

GpuNodes a100_nodes(int count) {
  return {.ranks_per_node = 8,
          .nodes = count,
          .links = {.generation = NcclGeneration::ampere,
                    .ring_bytes_per_second = 240e9,
                    .rails = 8,
                    .rail_bytes_per_second = 25e9}};
}

GpuNodes h100_nodes(int count) {
  return {.ranks_per_node = 8,
          .nodes = count,
          .links = {.generation = NcclGeneration::hopper,
                    .ring_bytes_per_second = 370e9,
                    .nvls_bytes_per_second = 480e9,
                    .rails = 8,
                    .rail_bytes_per_second = 50e9}};
}

double seconds_with(NcclAlgorithm algorithm, double bytes, const GpuNodes& gpus) {
  return nccl_all_reduce_seconds(bytes, algorithm, gpus).value();
}

// 14 steps of 3.4 us after 8.4 us, and 2 * 7 / 8 of the bytes at 240 GB/s.
TEST(NcclCost, RingOfEightReachesItsBandwidth) {
  EXPECT_NEAR(seconds_with(NcclAlgorithm::ring, kBytes, a100_nodes(1)), 56e-6 + 1.75 * kBytes / 240e9, 1e-9);
  EXPECT_EQ(nccl_all_reduce(kBytes, a100_nodes(1)).algorithm, NcclAlgorithm::ring);
}

// 14 steps of 0.6 us after 6.6 us.
TEST(NcclCost, FewBytesTakeTheLatencyOfLl) {
  EXPECT_NEAR(seconds_with(NcclAlgorithm::ring, 8, a100_nodes(1)), 15.0e-6, 1e-8);
}

TEST(NcclCost, NvlsIsFasterThanARingInOneNode) {
  const NcclAllReduce sum = nccl_all_reduce(kBytes, h100_nodes(1));
  EXPECT_EQ(sum.algorithm, NcclAlgorithm::nvls);
  EXPECT_NEAR(sum.seconds, 25e-6 + 1.75 * kBytes / 480e9, 1e-9);
  EXPECT_LT(sum.seconds, seconds_with(NcclAlgorithm::ring, kBytes, h100_nodes(1)));
}

// 480 GB/s are those of 8 GPUs; 4 have 1.5 * 3 / 7 of it, and 2 less than a ring.
TEST(NcclCost, FewGpusHaveLessOfTheSwitch) {
  GpuNodes four = h100_nodes(1), two = h100_nodes(1);
  four.ranks_per_node = 4;
  two.ranks_per_node = 2;
  EXPECT_NEAR(seconds_with(NcclAlgorithm::nvls, kBytes, four), 25e-6 + 1.5 * kBytes / (480e9 * 4.5 / 7),
              1e-9);
  for (const GpuNodes& gpus : {four, two})
    EXPECT_EQ(nccl_all_reduce(kBytes, gpus).algorithm, NcclAlgorithm::ring);
}

TEST(NcclCost, AnNvlsTreeHasAChannelForEachNetworkCard) {
  GpuNodes gpus = h100_nodes(2);
  gpus.links.rails = 1;
  EXPECT_FALSE(nccl_all_reduce_seconds(kBytes, NcclAlgorithm::nvls_tree, gpus));
  gpus.links.rails = 4;  // a channel of two nodes has at most 57.7 GB/s
  EXPECT_NEAR(seconds_with(NcclAlgorithm::nvls_tree, kBytes, gpus),
              25e-6 + 2 * 20.9e-6 + 1.875 * kBytes / (4 * 57.7e9), 1e-9);
}

TEST(NcclCost, NvlsNeedsASwitchThatAddsAndTwoGpus) {
  GpuNodes single = h100_nodes(8);
  single.ranks_per_node = 1;
  for (const NcclAlgorithm algorithm : {NcclAlgorithm::nvls, NcclAlgorithm::nvls_tree}) {
    for (const GpuNodes& gpus : {a100_nodes(1), a100_nodes(2), single})
      EXPECT_FALSE(nccl_all_reduce_seconds(kBytes, algorithm, gpus));
    EXPECT_EQ(nccl_all_reduce_seconds(kBytes, algorithm, h100_nodes(1)).has_value(),
              algorithm == NcclAlgorithm::nvls);
    EXPECT_EQ(nccl_all_reduce_seconds(kBytes, algorithm, h100_nodes(2)).has_value(),
              algorithm == NcclAlgorithm::nvls_tree);
  }
}

// Two nodes: 25 us and 2 steps of 20.9 us; 8 channels of 57.7 GB/s are the limit. 16 nodes: 8 steps, and 8
// channels of 45.5 GB/s.
TEST(NcclCost, NvlsTreeIsLimitedByItsChannels) {
  EXPECT_NEAR(seconds_with(NcclAlgorithm::nvls_tree, kBytes, h100_nodes(2)),
              66.8e-6 + 2 * kBytes * 15 / 16 / 461.6e9, 1e-9);
  EXPECT_NEAR(seconds_with(NcclAlgorithm::nvls_tree, kBytes, h100_nodes(16)),
              192.2e-6 + 2 * kBytes * 127 / 128 / 364e9, 1e-9);
  EXPECT_EQ(nccl_all_reduce(kBytes, h100_nodes(16)).algorithm, NcclAlgorithm::nvls_tree);
}

// A ring of 1024: 1792 steps in nodes of at least 1 us and 254 steps of 2.7 us between them, after 6.6 us. A
// tree: 14 steps of 0.6 us and 14 steps of 5 us, after 6.8 us.
TEST(NcclCost, TreeIsFasterThanARingForFewBytesOnManyNodes) {
  const GpuNodes gpus = a100_nodes(128);
  EXPECT_NEAR(seconds_with(NcclAlgorithm::ring, 8, gpus), 2484.4e-6, 1e-8);
  EXPECT_NEAR(seconds_with(NcclAlgorithm::tree, 8, gpus), 85.2e-6, 1e-8);
  EXPECT_EQ(nccl_all_reduce(65536, gpus).algorithm, NcclAlgorithm::tree);
  EXPECT_EQ(nccl_all_reduce(kBytes, a100_nodes(16)).algorithm, NcclAlgorithm::ring);
}

// 512 MB and more, where a tree reaches its full bandwidth: half of 92 % of it, at most 17.8 GB/s for each of
// 8 channels. Simple: 14 steps of 4 us, 6 of 14 us, 8.4 us before.
TEST(NcclCost, TreeSendsEachByteUpAndDown) {
  EXPECT_NEAR(seconds_with(NcclAlgorithm::tree, kBytes, a100_nodes(8)), 148.4e-6 + kBytes / (0.5 * 142.4e9),
              1e-9);
  GpuNodes slow = a100_nodes(8);
  slow.links.rail_bytes_per_second = 12.5e9;
  EXPECT_NEAR(seconds_with(NcclAlgorithm::tree, kBytes, slow),
              148.4e-6 + kBytes / (0.5 * 0.92 * 0.96 * 100e9), 1e-9);
}

// All of a node's traffic passes one GPU, which costs 15 %; one channel of 17.8 GB/s. 6 steps of 14 us.
TEST(NcclCost, ATreeOfSingleGpusHasLess) {
  GpuNodes gpus = a100_nodes(8);
  gpus.ranks_per_node = 1;
  EXPECT_NEAR(seconds_with(NcclAlgorithm::tree, kBytes, gpus), 92.4e-6 + kBytes / (0.5 * 0.85 * 17.8e9),
              1e-9);
}

// A card of 100 GB/s has two channels, of 24 GB/s each for more than two nodes.
TEST(NcclCost, BlackwellHasItsOwnLimits) {
  GpuNodes gpus = h100_nodes(8);
  gpus.links.generation = NcclGeneration::blackwell;
  gpus.links.rail_bytes_per_second = 100e9;
  gpus.links.ring_bytes_per_second = 800e9;
  EXPECT_NEAR(seconds_with(NcclAlgorithm::tree, kBytes, gpus), 148.4e-6 + kBytes / (0.5 * 384e9), 1e-9);
}

TEST(NcclCost, RailsMultiplyTheNetworkUpToTheNumberOfGpus) {
  for (const int rails : {1, 2, 4, 8, 16}) {
    GpuNodes gpus = a100_nodes(2);
    gpus.links.rails = rails;
    const double used = std::min(rails, 8);
    const double more =
        seconds_with(NcclAlgorithm::ring, 2 * kBytes, gpus) - seconds_with(NcclAlgorithm::ring, kBytes, gpus);
    EXPECT_NEAR(more, 2 * kBytes * 15 / 16 / (used * 24e9), 1e-9) << rails;
  }
}

TEST(NcclCost, LatencyOfTheLinkAddsToEachStepOfTheNetwork) {
  GpuNodes far = a100_nodes(8);
  far.links.latency_seconds = 5e-6;
  EXPECT_NEAR(seconds_with(NcclAlgorithm::tree, 8, far) - seconds_with(NcclAlgorithm::tree, 8, a100_nodes(8)),
              6 * 5e-6, 1e-9);
}

TEST(NcclCost, MoreBytesNeverTakeLessTime) {
  GpuNodes single = h100_nodes(8);
  single.ranks_per_node = 1;
  for (const GpuNodes& gpus : {a100_nodes(1), a100_nodes(2), a100_nodes(64), h100_nodes(1), h100_nodes(2),
                               h100_nodes(128), single}) {
    double before = 0;
    for (double bytes = 8; bytes < 1e11; bytes *= 1.3) {
      const double seconds = nccl_all_reduce(bytes, gpus).seconds;
      EXPECT_GE(seconds, before) << bytes << " bytes on " << gpus.nodes << " nodes";
      before = seconds;
    }
  }
}

TEST(NcclCost, OneRankTakesNoTimeAndNoNetworkTakesForever) {
  GpuNodes gpus = a100_nodes(1);
  gpus.ranks_per_node = 1;
  EXPECT_EQ(nccl_all_reduce(kBytes, gpus).seconds, 0);
  gpus = h100_nodes(2);
  gpus.links.rail_bytes_per_second = 0;
  EXPECT_TRUE(std::isinf(nccl_all_reduce(kBytes, gpus).seconds));
}

}  // namespace
}  // namespace lockstep
