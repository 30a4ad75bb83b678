// SPDX-License-Identifier: Apache-2.0
//
// SignRotation (kernels/codec_functors.h) of a block in the vectors of a CPU: 16 vectors of 16 elements.
// Butterflies of elements that are 16 or more apart are between vectors, the others inside one.
#pragma once

#include <utility>

#include "kernels/codec_functors.h"
#include "kernels/cpu/lanes.h"

namespace lockstep {

namespace detail {

inline constexpr int kRotatedLanes = 16;
inline constexpr int kRotatedVectors = static_cast<int>(kBlockElements) / kRotatedLanes;
using RotatedVector = Lanes<kRotatedLanes>::Float;

template <int kDistance>
LOCKSTEP_LANES_INLINE void butterflies_between(RotatedVector* vectors) {
  for (int i = 0; i < kRotatedVectors; ++i) {
    if ((i & kDistance) != 0) continue;
    const RotatedVector first = vectors[i], second = vectors[i + kDistance];
    vectors[i] = first + second;
    vectors[i + kDistance] = first - second;
  }
}

template <int kDistance, int... kLane>
LOCKSTEP_LANES_INLINE void butterflies_inside(RotatedVector* vectors, std::integer_sequence<int, kLane...>) {
  constexpr RotatedVector kSign = {((kLane & kDistance) != 0 ? -1.0f : 1.0f)...};
  for (int i = 0; i < kRotatedVectors; ++i) {
    const RotatedVector other = __builtin_shufflevector(vectors[i], vectors[i], (kLane ^ kDistance)...);
    vectors[i] = vectors[i] * kSign + other;
  }
}

LOCKSTEP_LANES_INLINE void hadamard(RotatedVector* vectors) {
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

// values: of a block, aligned to 64 bytes.
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
