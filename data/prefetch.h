// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

// Prefetches the first 16 cache lines of memory that is read soon. The hardware prefetcher fetches the
// following lines once the first are read.
inline void prefetch_lines(std::span<const std::uint8_t> memory) {
  constexpr std::size_t kLine = 64, kMostLines = 16;
  const std::size_t end = std::min(memory.size(), kMostLines * kLine);
  for (std::size_t at = 0; at < end; at += kLine) __builtin_prefetch(memory.data() + at);
}

}  // namespace lockstep
