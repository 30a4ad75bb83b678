// SPDX-License-Identifier: Apache-2.0
//
// SignRotation (kernels/codec_functors.h) of a block on the CPU: 16 vectors of 16 elements. Butterflies
// between elements 16 or more apart are between vectors, the others inside a vector.
#pragma once

#include <utility>

#include "kernels/codec_functors.h"
#include "kernels/cpu/lanes.h"

namespace lockstep {

namespace detail {

inline constexpr int kRotatedLanes = 16;
inline constexpr int kRotatedVectors = static_cast<int>(kBlockElements) / kRotatedLanes;
using RotatedVector = Lanes<kRotatedLanes>::Float;
// Sums of 256 signs: 16-bit integers, of which a vector register holds twice as many as floats.
using RotatedSigns = std::int16_t __attribute__((vector_size(2 * kRotatedLanes)));
using RotatedSums = std::int32_t __attribute__((vector_size(4 * kRotatedLanes)));

template <int kDistance, typename V>
LOCKSTEP_LANES_INLINE void butterflies_between(V* vectors) {
  for (int i = 0; i < kRotatedVectors; ++i) {
    if ((i & kDistance) != 0) continue;
    const V first = vectors[i], second = vectors[i + kDistance];
    vectors[i] = first + second;
    vectors[i + kDistance] = first - second;
  }
}

template <int kDistance, typename V, int... kLane>
LOCKSTEP_LANES_INLINE void butterflies_inside(V* vectors, std::integer_sequence<int, kLane...>) {
  constexpr V kSign = {((kLane & kDistance) != 0 ? -1 : 1)...};
  for (int i = 0; i < kRotatedVectors; ++i) {
    const V other = __builtin_shufflevector(vectors[i], vectors[i], (kLane ^ kDistance)...);
    vectors[i] = vectors[i] * kSign + other;
  }
}

template <typename V>
LOCKSTEP_LANES_INLINE void hadamard(V* vectors) {
  constexpr auto kLanes = std::make_integer_sequence<int, kRotatedLanes>();
  butterflies_between<8>(vectors);
  butterflies_between<4>(vectors);
  butterflies_between<2>(vectors);
  butterflies_between<1>(vectors);
  butterflies_inside<8>(vectors, kLanes);
  butterflies_inside<4>(vectors, kLanes);
  butterflies_inside<2>(vectors, kLanes);
  butterflies_inside<1>(vectors, kLanes);
}

struct alignas(64) RotationFactors {
  float values[kBlockElements];
};

constexpr RotationFactors rotation_factors() {
  RotationFactors factors = {};
  for (int i = 0; i < kBlockElements; ++i)
    factors.values[i] = SignRotation::factor(i / kBlockLanes, i % kBlockLanes);
  return factors;
}
inline constexpr RotationFactors kRotationFactors = rotation_factors();

}  // namespace detail

// values: one block, aligned to 64 bytes.
LOCKSTEP_LANES_INLINE void rotate(float* values) {
  using namespace detail;
  RotatedVector vectors[kRotatedVectors];
  for (int i = 0; i < kRotatedVectors; ++i) {
    vectors[i] = load<RotatedVector>(values + i * kRotatedLanes) *
                 load<RotatedVector>(kRotationFactors.values + i * kRotatedLanes);
  }
  hadamard(vectors);
  for (int i = 0; i < kRotatedVectors; ++i) store(values + i * kRotatedLanes, vectors[i]);
}

// rotate_back() of a block whose values are scale or -scale: exact except for the last product. bits: 1 for
// each element that is -scale; 16 words of 16 bits.
LOCKSTEP_LANES_INLINE void rotate_signs_back(const std::uint16_t* bits, float scale, float* values) {
  using namespace detail;
  constexpr RotatedSigns kBits = {1 << 0, 1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
                                  1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, -(1 << 15)};
  RotatedSigns signs[kRotatedVectors];
  for (int i = 0; i < kRotatedVectors; ++i) {
    const RotatedSigns word = RotatedSigns{} + static_cast<std::int16_t>(bits[i]);
    signs[i] = ((word & kBits) == kBits) | 1;  // -1 or 1
  }
  hadamard(signs);
  for (int i = 0; i < kRotatedVectors; ++i) {
    const RotatedVector sums = converted<RotatedVector>(converted<RotatedSums>(signs[i]));
    store(values + i * kRotatedLanes,
          sums * scale * load<RotatedVector>(kRotationFactors.values + i * kRotatedLanes));
  }
}

LOCKSTEP_LANES_INLINE void rotate_back(float* values) {
  using namespace detail;
  RotatedVector vectors[kRotatedVectors];
  for (int i = 0; i < kRotatedVectors; ++i) vectors[i] = load<RotatedVector>(values + i * kRotatedLanes);
  hadamard(vectors);
  for (int i = 0; i < kRotatedVectors; ++i) {
    store(values + i * kRotatedLanes,
          vectors[i] * load<RotatedVector>(kRotationFactors.values + i * kRotatedLanes));
  }
}

}  // namespace lockstep
