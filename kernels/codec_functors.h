// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of kernels/codec.h, written once for both backends. A block is 8 rows of 32: element 32 k +
// l is lane l's k-th, and sums over a block go over k first, then over lanes in a tree: on both
// in the same order.
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

  // Of the largest magnitude's bits: a NaN's are larger than infinity's, and that larger than any number's.
  // What is below 2^-100 is left for later: its inverse would be infinite.
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE static Int8Block of(std::uint32_t largest_bits) {
    if (largest_bits >= kInfinityBits) return {.scale = std::bit_cast<float>(0x7fc00000u), .inverse = 0};
    const float largest = std::bit_cast<float>(largest_bits);
    if (largest < 0x1p-100f) return {};
    return {.scale = largest / 127.0f, .inverse = 127.0f / largest};
  }
  // In the last byte of the result. Adding 1.5 * 2^23 rounds to the nearest integer, ties to even.
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE std::uint32_t rounded(float value) const {
    return std::bit_cast<std::uint32_t>(value * inverse + 12582912.0f) & 0xffu;
  }
  // word: random bits. Up with the probability of what is cut off.
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

// The random words of elements 4 i to 4 i + 3.
LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE PhiloxCounter dither_words(std::int64_t element, float step,
                                                                std::uint32_t purpose, PhiloxKey key) {
  const auto quarter = static_cast<std::uint64_t>(element) / 4;
  return philox({static_cast<std::uint32_t>(quarter), static_cast<std::uint32_t>(quarter >> 32),
                 static_cast<std::uint32_t>(step), purpose},
                key);
}

struct SignBlock {
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE static bool bit(float value) { return value < 0; }
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE static float decoded(float scale, bool negative) {
    return negative ? -scale : scale;
  }
  // sum: of magnitudes of so many elements.
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE static float scale_of(float sum, int elements) {
    return elements == 0 ? 0.0f : sum / static_cast<float>(elements);
  }
};

}  // namespace lockstep
