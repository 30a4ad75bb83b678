// SPDX-License-Identifier: Apache-2.0
#include "data/sample_order.h"

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "core/random.h"

namespace lockstep {
namespace {

constexpr int kRounds = 6;

}  // namespace

SampleOrder::SampleOrder(std::int64_t size, std::uint64_t seed, std::uint64_t epoch)
    : size_(size), seed_(seed), epoch_(epoch) {
  CHECK(size > 0, "{} samples", size);
  const int bits = std::bit_width(static_cast<std::uint64_t>(size - 1));
  half_bits_ = std::max((bits + 1) / 2, 1);
}

std::int64_t SampleOrder::operator()(std::int64_t position) const {
  CHECK(position >= 0 && position < size_, "position {} of {}", position, size_);
  auto value = static_cast<std::uint64_t>(position);
  do {
    value = encrypt(value);
  } while (value >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(value);
}

std::uint64_t SampleOrder::encrypt(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    const PhiloxCounter counter = {static_cast<std::uint32_t>(right), round,
                                   static_cast<std::uint32_t>(epoch_),
                                   static_cast<std::uint32_t>(epoch_ >> 32)};
    const PhiloxKey key = {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)};
    const std::uint64_t mixed = left ^ (philox(counter, key)[0] & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

}  // namespace lockstep
