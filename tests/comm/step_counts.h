// SPDX-License-Identifier: Apache-2.0
//
// Helpers for tests of codecs that count steps.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/gradients/buckets.h"

namespace lockstep {

// Sets each step count of the exchange. A count is stored as two floats: steps modulo 2^24, then steps /
// 2^24.
inline void set_step_counts(GradientBuckets& buckets, std::int64_t steps) {
  for (const ExchangeState& state : buckets.exchange().state()) {
    if (state.name.find("_step") == std::string::npos) continue;
    const std::span<float> parts = state.memory.as<float>();
    parts[0] = static_cast<float>(steps % (1 << 24));
    if (parts.size() > 1) parts[1] = static_cast<float>(steps >> 24);
  }
}
inline std::vector<std::int64_t> step_counts(GradientBuckets& buckets) {
  std::vector<std::int64_t> counts;
  for (const ExchangeState& state : buckets.exchange().state()) {
    if (state.name.find("_step") == std::string::npos) continue;
    const std::span<const float> parts = state.memory.as<float>();
    std::int64_t count = 0;
    for (std::size_t i = parts.size(); i > 0; --i)
      count = (count << 24) + static_cast<std::int64_t>(parts[i - 1]);
    counts.push_back(count);
  }
  return counts;
}

}  // namespace lockstep
