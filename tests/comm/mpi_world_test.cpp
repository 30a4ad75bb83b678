// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/mpi_world.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "comm/world.h"
#include "core/error.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

TEST(MpiWorld, KnowsItsRank) {
  const World& world = test_world();
  EXPECT_EQ(world.rank(), launched_rank());
  EXPECT_EQ(world.rank(), current_rank());
  EXPECT_LT(world.rank(), world.size());
  EXPECT_FALSE(world.host().empty());
}

TEST(MpiWorld, NodesHoldConsecutiveRanks) {
  const World& world = test_world();
  const char* wanted = std::getenv("LOCKSTEP_TEST_RANKS_PER_NODE");
  const int per_node = wanted == nullptr ? world.size() : std::atoi(wanted);
  EXPECT_EQ(world.node(), world.rank() / per_node);
  EXPECT_EQ(world.local_rank(), world.rank() % per_node);
  EXPECT_EQ(world.nodes(), (world.size() + per_node - 1) / per_node);
  EXPECT_EQ(world.local_size(), std::min(per_node, world.size() - world.node() * per_node));
}

TEST(MpiWorld, CanBeMoved) {
  World& world = test_world();
  const int rank = world.rank();
  World moved = std::move(world);
  EXPECT_EQ(moved.rank(), rank);
  world = std::move(moved);
  EXPECT_EQ(test_world().rank(), rank);
}

TEST(MpiWorld, IsJoinedOnce) { EXPECT_THROW(World::join(), Error); }

TEST(MpiWorld, ADeviceThatWasNotBuiltIsNamed) {
  if (cuda_status().built) GTEST_SKIP() << "built with CUDA";
  const std::unique_ptr<Communicator> host = test_world().communicator();
  const auto make = [&] { test_world().communicator({.kind = DeviceKind::cuda, .index = 0}, *host); };
  expect_parts(message_of<ConfigError>(make), {"LOCKSTEP_CUDA"});
}

}  // namespace
}  // namespace lockstep
