// SPDX-License-Identifier: Apache-2.0
#include "core/random.h"

namespace lockstep {

std::uint64_t hash_name(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

PhiloxKey key_for(std::uint64_t seed, std::string_view purpose) {
  const std::uint64_t name = hash_name(purpose);
  constexpr std::uint32_t kDerive = 0x6b657931u;  // a counter value that Random never reaches
  const PhiloxCounter words =
      philox({kDerive, kDerive, static_cast<std::uint32_t>(name), static_cast<std::uint32_t>(name >> 32)},
             {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return {words[0], words[1]};
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

}  // namespace lockstep
