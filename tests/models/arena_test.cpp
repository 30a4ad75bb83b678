// SPDX-License-Identifier: Apache-2.0
#include "models/arena.h"

#include <vector>

#include <gtest/gtest.h>

#include "core/random.h"
#include "core/tensor/buffer.h"

namespace lockstep {
namespace {

bool alive_at(const ArenaBlock& block, int time) {
  const auto in = [&](const Lifetime& life) { return life.first <= time && time <= life.last; };
  return in(block.life) || (block.again && in(*block.again));
}

bool alive_together(const ArenaBlock& a, const ArenaBlock& b) {
  for (int time = 0; time < 200; ++time) {
    if (alive_at(a, time) && alive_at(b, time)) return true;
  }
  return false;
}

TEST(Arena, BlocksWithOverlappingLifetimesDoNotOverlap) {
  const Random random(3, "arena");
  for (std::uint64_t round = 0; round < 50; ++round) {
    std::vector<ArenaBlock> blocks;
    for (std::uint64_t i = 0; i < 60; ++i) {
      const std::uint64_t index = (round * 60 + i) * 4;
      const int first = static_cast<int>(random.bits(index) % 50);
      const int last = first + static_cast<int>(random.bits(index + 2) % 10);
      blocks.push_back({.bytes = random.bits(index + 1) % 5000, .life = {first, last}});
      const int again = last + 1 + static_cast<int>(random.bits(index + 3) % 60);
      if (again % 3 == 0) blocks.back().again = Lifetime{again, again + first % 7};
    }
    const ArenaPlan plan = plan_arena(blocks);
    for (std::size_t a = 0; a < blocks.size(); ++a) {
      EXPECT_EQ(plan.offsets[a] % kAlignment, 0u);
      EXPECT_LE(plan.offsets[a] + blocks[a].bytes, plan.bytes);
      for (std::size_t b = 0; b < a; ++b) {
        if (!alive_together(blocks[a], blocks[b])) continue;
        const bool apart = plan.offsets[a] + blocks[a].bytes <= plan.offsets[b] ||
                           plan.offsets[b] + blocks[b].bytes <= plan.offsets[a];
        EXPECT_TRUE(apart) << "blocks " << a << " and " << b << " in round " << round;
      }
    }
  }
}

TEST(Arena, DisjointLifetimesShareMemory) {
  const std::vector<ArenaBlock> blocks = {{1024, {0, 1}}, {1024, {2, 3}}, {512, {4, 5}}};
  EXPECT_EQ(plan_arena(blocks).bytes, 1024u);
}

TEST(Arena, ABlockMayUseTheGapBetweenTwoLifetimes) {
  const std::vector<ArenaBlock> blocks = {{1024, {0, 1}, Lifetime{6, 7}}, {1024, {2, 5}}};
  EXPECT_EQ(plan_arena(blocks).bytes, 1024u);
  const std::vector<ArenaBlock> meeting = {{1024, {0, 1}, Lifetime{5, 7}}, {1024, {2, 5}}};
  EXPECT_EQ(plan_arena(meeting).bytes, 2048u);
}

TEST(Arena, EmptyPlanNeedsNothing) { EXPECT_EQ(plan_arena({}).bytes, 0u); }

}  // namespace
}  // namespace lockstep
