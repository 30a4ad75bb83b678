// SPDX-License-Identifier: Apache-2.0
//
// What crosses nodes: which way sums go, and how often data does. Ranks of one machine are told that they are
// on several nodes.
#include <algorithm>
#include <numeric>
#include <string_view>

#include <gtest/gtest.h>

#include "comm/agreement.h"
#include "comm/mpi/communicator.h"
#include "comm/mpi/session.h"
#include "comm/sum_tree.h"
#include "tests/comm/contract.h"
#include "tests/comm/mpi_world.h"

namespace lockstep {
namespace {

// What communicators leave in it is never freed.
std::shared_ptr<MpiSession> session_of(AllReduceWay way) {
  static std::vector<std::shared_ptr<MpiSession>> sessions;
  sessions.push_back(std::make_shared<MpiSession>());
  sessions.back()->between_nodes = way;
  return sessions.back();
}

// What this rank sends for one sum of so many floats, as if each rank were on a node of its own.
std::uint64_t sent_for_sum(const std::shared_ptr<MpiSession>& session, std::size_t count) {
  std::vector<int> nodes(static_cast<std::size_t>(test_world().size()));
  std::iota(nodes.begin(), nodes.end(), 0);
  const auto communicator = make_mpi_communicator(session, place_ranks(test_world().rank(), nodes));
  std::vector<float> data(count, 1.0f);
  communicator->all_reduce(data.data(), count, DType::f32, ReduceOp::sum);
  communicator->stream().synchronize();
  EXPECT_EQ(std::ranges::count(data, static_cast<float>(nodes.size())), static_cast<std::ptrdiff_t>(count));
  return communicator->traffic().sent_bytes;
}

// Which way a sum goes shows in what each rank sends.
TEST(MpiNodes, TheFasterWayIsFoundOnceForAllCommunicatorsOfAShape) {
  World& world = test_world();
  if (world.nodes() > 1 || world.size() < 3 || world.size() == 4) return;  // both ways are the same, or known
  constexpr std::size_t kSmall = 6'000, kLarge = 30'000;                   // floats
  on_every_rank([&] {
    const std::unique_ptr<Communicator> all = world.communicator();
    const auto direct = session_of(AllReduceWay::direct), halving = session_of(AllReduceWay::halving);
    const auto chosen = session_of(AllReduceWay::automatic);
    const auto expect_ways = [&](bool small_halves, bool large_halves) {
      EXPECT_EQ(sent_for_sum(chosen, kSmall), sent_for_sum(small_halves ? halving : direct, kSmall));
      EXPECT_EQ(sent_for_sum(chosen, kLarge), sent_for_sum(large_halves ? halving : direct, kLarge));
    };
    const auto differs = [&](std::size_t count) {
      return sent_for_sum(direct, count) != sent_for_sum(halving, count);
    };
    EXPECT_GE(first_rank_where(*all, differs(kSmall)), 0);
    EXPECT_GE(first_rank_where(*all, differs(kLarge)), 0);

    sent_for_sum(chosen, kLarge);
    const WireShape shape{.ranks = world.size(), .nodes = world.size(), .parts = 1};
    ASSERT_EQ(chosen->faster_ways.size(), 1u);
    const FasterWay measured = chosen->faster_ways.at(shape);
    expect_ways(measured.halving_small, measured.halving_large);
    // What is known is not measured again, whatever it is.
    for (const bool large_halves : {false, true}) {
      chosen->faster_ways[shape] = {.halving_small = !large_halves, .halving_large = large_halves};
      expect_ways(!large_halves, large_halves);
    }
    // Some know it otherwise: all go the same way.
    chosen->faster_ways[shape] = {.halving_small = world.rank() == 0, .halving_large = world.rank() != 0};
    expect_ways(false, false);
    // One has not heard of it: all find out, and alike.
    if (world.rank() == 1) chosen->faster_ways.clear();
    sent_for_sum(chosen, kLarge);
    ASSERT_EQ(chosen->faster_ways.size(), 1u);
    const FasterWay again = chosen->faster_ways.at(shape);
    const std::int32_t found = again.halving_small + 2 * again.halving_large;
    for (const std::int32_t other : gather_values<std::int32_t>(*all, found)) EXPECT_EQ(other, found);
    expect_ways(again.halving_small, again.halving_large);
  });
}

}  // namespace
}  // namespace lockstep
