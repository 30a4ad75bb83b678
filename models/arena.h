// SPDX-License-Identifier: Apache-2.0
//
// ArenaPlan: places memory blocks with known lifetimes in one arena. Blocks alive at the same time do not
// overlap; others may share memory. Greedy: largest block first, at the lowest offset that is free for its
// whole lifetime.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace lockstep {

struct Lifetime {
  int first = 0;  // alive in [first, last], in steps of the plan
  int last = 0;
};

struct ArenaBlock {
  std::size_t bytes = 0;
  Lifetime life;
  std::optional<Lifetime> again = {};  // a second lifetime at the same offset, after the first
};

struct ArenaPlan {
  std::vector<std::size_t> offsets;  // by block; multiples of kAlignment
  std::size_t bytes = 0;             // of the arena
};

ArenaPlan plan_arena(std::span<const ArenaBlock> blocks);

}  // namespace lockstep
