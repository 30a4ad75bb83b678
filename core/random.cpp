// SPDX-License-Identifier: Apache-2.0
#include "core/random.h"

#include <cmath>
#include <numbers>

namespace lockstep {
namespace {

constexpr std::uint32_t kMultiplier0 = 0xD2511F53u;
constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57u;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9u;
constexpr std::uint32_t kWeyl1 = 0xBB67AE85u;
constexpr int kRounds = 10;

// FNV-1a: a stable 64-bit name for a purpose.
std::uint64_t hash_name(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kMultiplier1} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return counter;
}

Random::Random(std::uint64_t seed, std::string_view purpose) : Random(seed, hash_name(purpose)) {}

std::uint32_t Random::bits(std::uint64_t index) const {
  const std::uint64_t block = index / 4;
  const PhiloxCounter counter = {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                                 static_cast<std::uint32_t>(purpose_),
                                 static_cast<std::uint32_t>(purpose_ >> 32)};
  return philox(counter,
                {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)})[index % 4];
}

float Random::uniform(std::uint64_t index) const { return static_cast<float>(bits(index) >> 8) * 0x1p-24f; }

float Random::normal(std::uint64_t index) const {
  const double radius_uniform = (static_cast<double>(bits(2 * index)) + 1.0) * 0x1p-32;  // (0, 1]
  const double angle_uniform = static_cast<double>(bits(2 * index + 1)) * 0x1p-32;
  return static_cast<float>(std::sqrt(-2.0 * std::log(radius_uniform)) *
                            std::cos(2.0 * std::numbers::pi * angle_uniform));
}

}  // namespace lockstep
