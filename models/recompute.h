// SPDX-License-Identifier: Apache-2.0
//
// Recompute: the values that backward computes again instead of reading them from memory. The result has the
// same bits (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

struct Recompute {
  enum class Scope {
    nothing,
    blocks,    // inner values of the graph's blocks
    segments,  // inner values of each run of `layers` layers, except the last run, which backward reads first
    automatic,  // the least additional work that fits into memory
    least,      // the least memory
  };
  Scope scope = Scope::nothing;
  std::int64_t layers = 0;  // of a segment

  static const Recompute nothing, blocks, automatic, least;
  static constexpr Recompute every(std::int64_t layers) {
    return {.scope = Scope::segments, .layers = layers};
  }
  // True if plan_memory() cannot plan it: see choose_recompute().
  constexpr bool is_open() const { return scope == Scope::automatic || scope == Scope::least; }
  bool operator==(const Recompute&) const = default;
};

inline constexpr Recompute Recompute::nothing{};
inline constexpr Recompute Recompute::blocks{.scope = Scope::blocks};
inline constexpr Recompute Recompute::automatic{.scope = Scope::automatic};
inline constexpr Recompute Recompute::least{.scope = Scope::least};

// "of blocks", "of segments of 6 layers": completes "recomputation" for users.
std::string described(const Recompute& recompute);

}  // namespace lockstep
