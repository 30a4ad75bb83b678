// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

// Asks the processor to have the first lines of what is read soon in its caches. Those behind them it fetches
// by itself, when it has seen the first being read.
inline void prefetch_lines(std::span<const std::uint8_t> memory) {
  constexpr std::size_t kLine = 64, kMostLines = 16;
  const std::size_t end = std::min(memory.size(), kMostLines * kLine);
  for (std::size_t at = 0; at < end; at += kLine) __builtin_prefetch(memory.data() + at);
}

}  // namespace lockstep
