// SPDX-License-Identifier: Apache-2.0
//
// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy
// as 1, 2, 3", SC 2011). A number depends only on (seed, purpose, index), not on rank, thread or the order of
// calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/tensor/dtype.h"

namespace lockstep {

// An array usable in device code.
template <int N>
struct PhiloxWords {
  std::uint32_t words[N] = {};

  LOCKSTEP_HOST_DEVICE constexpr std::uint32_t& operator[](std::size_t i) { return words[i]; }
  LOCKSTEP_HOST_DEVICE constexpr std::uint32_t operator[](std::size_t i) const { return words[i]; }
  bool operator==(const PhiloxWords&) const = default;
};
using PhiloxCounter = PhiloxWords<4>;
using PhiloxKey = PhiloxWords<2>;

// One block: four 32-bit words.
LOCKSTEP_HOST_DEVICE constexpr PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

// FNV-1a: a stable hash of a text.
std::uint64_t hash_name(std::string_view name);

// A key derived from a seed and a purpose, for generators that use the whole counter themselves.
PhiloxKey key_for(std::uint64_t seed, std::string_view purpose);

// A stream of numbers for one purpose ("weights of conv1", "dropout of step 7"), read at any index.
class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t purpose) : seed_(seed), purpose_(purpose) {}
  Random(std::uint64_t seed, std::string_view purpose);

  std::uint32_t bits(std::uint64_t index) const;
  // Uniform in [0, 1), 24 bits.
  float uniform(std::uint64_t index) const;
  // Uniform from low to high, which rounding may reach.
  float uniform(std::uint64_t index, float low, float high) const {
    return low + (high - low) * uniform(index);
  }
  // Standard normal, by Box-Muller.
  float normal(std::uint64_t index) const;
  // Fills values with normal(0), normal(1), ..: the same bits, many times faster.
  void normals(std::span<float> values) const;

 private:
  std::uint64_t seed_;
  std::uint64_t purpose_;
};

}  // namespace lockstep
