// SPDX-License-Identifier: Apache-2.0
//
// Grayscale value of a colour, as libjpeg computes it; gray stays the same.
#pragma once

#include <cstdint>

namespace lockstep {

inline std::uint8_t luma(std::uint8_t red, std::uint8_t green, std::uint8_t blue) {
  return static_cast<std::uint8_t>((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16);
}

}  // namespace lockstep
