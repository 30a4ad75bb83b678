// SPDX-License-Identifier: Apache-2.0
//
// Walk: an order that visits each of 0, 1, .., count - 1 once, in equal steps around the ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>

namespace lockstep::emulator {

struct Walk {
  std::size_t count = 0;
  std::size_t place = 0;
  std::size_t step = 1;

  void advance() {
    place += step;
    if (place >= count) place -= count;
  }
};

inline Walk ascending_walk(std::size_t count) { return {.count = count}; }
inline Walk descending_walk(std::size_t count) {
  return {.count = count, .place = count - 1, .step = count - 1};
}

// Mixes the bits, so that neighbouring numbers give very different results (SplitMix64's finalizer).
inline std::uint64_t mixed(std::uint64_t number) {
  number += 0x9e3779b97f4a7c15u;
  number = (number ^ number >> 30) * 0xbf58476d1ce4e5b9u;
  number = (number ^ number >> 27) * 0x94d049bb133111ebu;
  return number ^ number >> 31;
}
inline Walk seeded_walk(std::size_t count, std::uint64_t seed) {
  if (count < 2) return {.count = count};
  std::size_t step = 1 + mixed(seed) % (count - 1);
  while (std::gcd(step, count) != 1) ++step;  // ends, because count - 1 is coprime
  return {.count = count, .place = mixed(seed + 1) % count, .step = step};
}

}  // namespace lockstep::emulator
