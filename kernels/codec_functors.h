// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of kernels/codec.h, written once for both backends. A block is 8 rows of 32: element 32 k +
// l is in row k, lane l. Sums over a block go over rows first, then over lanes in a tree, in the same order
// on both backends.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/codec.h"
#include "kernels/functors.h"

namespace lockstep {

inline constexpr int kBlockLanes = 32;
inline constexpr int kBlockRows = static_cast<int>(kBlockElements) / kBlockLanes;
inline constexpr std::uint32_t kMagnitudeBits = 0x7fffffffu;
inline constexpr std::uint32_t kInfinityBits = 0x7f800000u;

struct ErrorFeedback {
  float loss_scale = 1;
  float inverse = 1;

  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE static ErrorFeedback of(const float* loss_scale) {
    if (loss_scale == nullptr) return {};
    return {.loss_scale = *loss_scale, .inverse = 1.0f / *loss_scale};
  }
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE float fed(float value, float residual) const {
    return value + loss_scale * residual;
  }
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE float left(float fed_value, float sent) const {
    return (fed_value - sent) * inverse;
  }
};

struct Int8Block {
  float scale = 0;
  float inverse = 0;

  // Chooses the scale from the bits of the largest magnitude, which order NaN above infinity above all
  // numbers. A block whose values are all below 2^-100 is sent as zeros and stays in the residual: its
  // inverse scale would be infinite.
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE static Int8Block of(std::uint32_t largest_bits) {
    if (largest_bits >= kInfinityBits) return {.scale = std::bit_cast<float>(0x7fc00000u), .inverse = 0};
    const float largest = std::bit_cast<float>(largest_bits);
    if (largest < 0x1p-100f) return {};
    return {.scale = largest / 127.0f, .inverse = 127.0f / largest};
  }
  // Returns the rounded value in the last byte of the result. Adding 1.5 * 2^23 rounds to the nearest
  // integer, ties to even.
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE std::uint32_t rounded(float value) const {
    return std::bit_cast<std::uint32_t>(value * inverse + 12582912.0f) & 0xffu;
  }
  // Stochastic rounding: rounds up with a probability equal to the fraction. word: random bits.
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE std::uint32_t rounded(float value, std::uint32_t word) const {
    const float uniform = static_cast<float>(word >> 8) * 0x1p-24f;
    float moved = value * inverse + (uniform - 0.5f);
    moved = moved > -127.0f ? moved : -127.0f;
    moved = moved < 127.0f ? moved : 127.0f;
    return std::bit_cast<std::uint32_t>(moved + 12582912.0f) & 0xffu;
  }
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE static float decoded(float scale, std::int8_t byte) {
    return scale * static_cast<float>(byte);
  }
};

// The random words of elements 4 i to 4 i + 3; element is any of them.
LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE PhiloxCounter dither_words(std::int64_t element, const StepDigits& step,
                                                                std::uint32_t purpose, PhiloxKey key) {
  const auto quarter = static_cast<std::uint64_t>(element) / 4;
  return philox({static_cast<std::uint32_t>(quarter), static_cast<std::uint32_t>(quarter >> 32),
                 static_cast<std::uint32_t>(step.value()), purpose},
                key);
}

// Rotation of the codec sign, applied before the signs are taken and inverted after decoding. Half of the
// elements, the same in every block, change their signs, and a Walsh-Hadamard transform mixes them all:
// butterflies between elements that are 128, 64, .. and 1 apart, in this order; the first three are between
// rows. The transform is its own inverse up to a factor of 256; each direction applies the square root, 1/16.
struct SignRotation {
  // An element's factor: applied before the butterflies when rotating, after them when rotating back.
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE static constexpr float factor(int row, int lane) {
    return ((flipped(row) >> lane) & 1u) != 0 ? -0.0625f : 0.0625f;
  }

 private:
  // Pseudo-random bits, one for each lane.
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE static constexpr std::uint32_t flipped(int row) {
    std::uint32_t word = 0x9e3779b9u * static_cast<std::uint32_t>(row + 1);
    word = (word ^ (word >> 16)) * 0x85ebca6bu;
    word = (word ^ (word >> 13)) * 0xc2b2ae35u;
    return word ^ (word >> 16);
  }
};

struct SignBlock {
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE static bool bit(float value) { return value < 0; }
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE static float decoded(float scale, bool negative) {
    return negative ? -scale : scale;
  }
  // sum: of the magnitudes in the rotated block.
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE static float scale_of(float sum) {
    return sum * (kSignGain / static_cast<float>(kBlockElements));
  }
};

}  // namespace lockstep
