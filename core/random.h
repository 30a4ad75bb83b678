// SPDX-License-Identifier: Apache-2.0
//
// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy
// as 1, 2, 3", SC 2011). A number depends on (seed, purpose, index) and on nothing else: no rank, no thread,
// no order of calls.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "core/dtype.h"

namespace lockstep {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

// One block: four 32-bit words.
PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key);

// A stream of numbers for one purpose ("weights of conv1", "dropout of step 7"), read at any index.
class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t purpose) : seed_(seed), purpose_(purpose) {}
  Random(std::uint64_t seed, std::string_view purpose);

  std::uint32_t bits(std::uint64_t index) const;
  // Uniform in [0, 1), 24 bits.
  float uniform(std::uint64_t index) const;
  // Uniform in [low, high).
  float uniform(std::uint64_t index, float low, float high) const {
    return low + (high - low) * uniform(index);
  }
  // Standard normal, by Box-Muller.
  float normal(std::uint64_t index) const;

 private:
  std::uint64_t seed_;
  std::uint64_t purpose_;
};

}  // namespace lockstep
