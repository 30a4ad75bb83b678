// SPDX-License-Identifier: Apache-2.0
#include "models/arena.h"

#include <algorithm>
#include <numeric>

#include "core/tensor/buffer.h"

namespace lockstep {
namespace {

bool overlap(const Lifetime& a, const Lifetime& b) { return a.first <= b.last && b.first <= a.last; }

bool alive_together(const ArenaBlock& a, const ArenaBlock& b) {
  return overlap(a.life, b.life) || (a.again && overlap(*a.again, b.life)) ||
         (b.again && overlap(a.life, *b.again)) || (a.again && b.again && overlap(*a.again, *b.again));
}

}  // namespace

ArenaPlan plan_arena(std::span<const ArenaBlock> blocks) {
  ArenaPlan plan;
  plan.offsets.resize(blocks.size());
  std::vector<std::size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return blocks[a].bytes > blocks[b].bytes; });

  std::vector<std::size_t> placed;
  for (const std::size_t block : order) {
    const std::size_t bytes = align_up(blocks[block].bytes);
    std::vector<std::size_t> rivals;  // placed blocks alive together with this one, by offset
    for (const std::size_t other : placed) {
      if (alive_together(blocks[other], blocks[block])) rivals.push_back(other);
    }
    std::ranges::sort(rivals, {}, [&](std::size_t rival) { return plan.offsets[rival]; });
    std::size_t offset = 0;
    for (const std::size_t rival : rivals) {
      if (offset + bytes <= plan.offsets[rival]) break;
      offset = std::max(offset, plan.offsets[rival] + align_up(blocks[rival].bytes));
    }
    plan.offsets[block] = offset;
    plan.bytes = std::max(plan.bytes, offset + bytes);
    placed.push_back(block);
  }
  return plan;
}

}  // namespace lockstep
