// SPDX-License-Identifier: Apache-2.0
//
// SampleOrder: a pseudo-random permutation of [0, size) for each (seed, epoch), evaluated at any position in
// O(1) memory and time: a Feistel network of Philox rounds on the smallest even number of bits that covers
// size, walked until the value falls inside (cycle walking; Black and Rogaway, "Ciphers with arbitrary finite
// domains", 2002).
#pragma once

#include <cstdint>

namespace lockstep {

class SampleOrder {
 public:
  // size must be above 0.
  SampleOrder(std::int64_t size, std::uint64_t seed, std::uint64_t epoch);

  std::int64_t size() const { return size_; }
  // Returns the sample at a position; both are in [0, size), and each sample has exactly one position.
  std::int64_t operator()(std::int64_t position) const;

 private:
  std::uint64_t encrypt(std::uint64_t value) const;

  std::int64_t size_;
  std::uint64_t seed_;
  std::uint64_t epoch_;
  int half_bits_;
};

}  // namespace lockstep
