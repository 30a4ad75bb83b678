// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of kernels/sparse.h for one element, on host and device, and the sizes that both share.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/tensor/dtype.h"
#include "kernels/functors.h"
#include "kernels/sparse.h"

namespace lockstep {

// A number and the velocity u it was made of.
template <typename T>
struct SparseNumber {
  T value;
  T velocity;
};

struct MakeSparseNumber {
  float factor = 1;
  float rate = 1;
  float inverse_rate = 1;
  float momentum = 0;
  bool nesterov = false;

  LOCKSTEP_HOST_DEVICE static MakeSparseNumber from(const SparseNumbers& a) {
    float factor = a.loss_scale == nullptr ? 1.0f : 1.0f / *a.loss_scale;
    if (a.clip != nullptr) factor *= *a.clip;
    const float rate = a.learning_rate == nullptr ? 1.0f : *a.learning_rate;
    return {.factor = factor,
            .rate = rate,
            .inverse_rate = 1.0f / rate,
            .momentum = a.momentum,
            .nesterov = a.nesterov};
  }
  // Without momentum.
  template <typename T>
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE T operator()(T gradient, T residual) const {
    return gradient * factor + residual * inverse_rate;
  }
  template <typename T>
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE SparseNumber<T> operator()(T gradient, T residual, T velocity) const {
    const T g = gradient * factor;
    const T u = velocity * momentum + g;
    const T r = residual * inverse_rate;
    return {nesterov ? r + (g + u * momentum) : r + u, u};
  }
  // The residual for the part of a number that is not sent.
  template <typename T>
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE T kept(T left) const {
    return left * rate;
  }
};

// Orders numbers by magnitude; values that are not finite are the largest.
LOCKSTEP_HOST_DEVICE inline std::uint32_t sparse_size(float value) {
  std::uint32_t bits = 0;
  memcpy(&bits, &value, sizeof(bits));
  return bits & 0x7fffffffu;
}
inline constexpr std::uint32_t kSparseNotFinite = 0x7f800000u;

// An entry of a SparseMessage.
struct SparseWord {
  std::uint32_t bits = 0;

  LOCKSTEP_HOST_DEVICE static SparseWord of(float value, std::int64_t place) {
    const std::uint32_t upper = BFloat16(value).bits;
    return {upper << 16 | static_cast<std::uint32_t>(place & (SparseMessage::kPage - 1))};
  }
  LOCKSTEP_HOST_DEVICE float value() const {
    BFloat16 rounded;
    rounded.bits = static_cast<std::uint16_t>(bits >> 16);
    return static_cast<float>(rounded);
  }
  LOCKSTEP_HOST_DEVICE std::int64_t place_in_page() const { return bits & (SparseMessage::kPage - 1); }
  // Replaces the number by NaN, to report a value that is not finite.
  LOCKSTEP_HOST_DEVICE SparseWord spoiled() const { return {(bits & 0xffffu) | 0x7fc00000u}; }
};

LOCKSTEP_HOST_DEVICE inline float clip_factor(double squared_norm, float most) {
  const double norm = std::sqrt(squared_norm);
  return norm <= static_cast<double>(most) ? 1.0f : static_cast<float>(static_cast<double>(most) / norm);
}

// The sampled numbers: every `step`-th stretch of 16.
struct SparseSample {
  static constexpr std::int64_t kStretch = 16;
  static constexpr std::int64_t kLeast = 1 << 16;
  static constexpr std::int64_t kLeastKept = 256;  // expected number of sampled values above the threshold
  std::int64_t count = 0;
  std::int64_t step = 1;

  LOCKSTEP_HOST_DEVICE static SparseSample of(std::int64_t count, std::int64_t kept) {
    std::int64_t wanted = kept > 0 ? count / kept * kLeastKept : count;
    if (wanted < kLeast) wanted = kLeast;
    const std::int64_t step = count / wanted;
    return {.count = count, .step = step < 1 ? 1 : step};
  }
  LOCKSTEP_HOST_DEVICE std::int64_t stretches() const {
    const std::int64_t all = (count + kStretch - 1) / kStretch;
    return (all + step - 1) / step;
  }
  LOCKSTEP_HOST_DEVICE std::int64_t begin(std::int64_t stretch) const { return stretch * step * kStretch; }
  LOCKSTEP_HOST_DEVICE std::int64_t end(std::int64_t stretch) const {
    const std::int64_t end = begin(stretch) + kStretch;
    return end < count ? end : count;
  }
  LOCKSTEP_HOST_DEVICE std::int64_t numbers() const {
    const std::int64_t last = stretches() - 1;
    return last * kStretch + (end(last) - begin(last));
  }
};

// Sizes are counted in two passes: first in bins of an eighth of an octave, then those of the bin that
// contains the threshold in finer bins. Zeros are not counted and never selected.
inline constexpr int kSparseBins = 2048;
inline constexpr int kSparseCoarseShift = 20;
inline constexpr int kSparseFineShift = 9;

// The result of the first count.
struct SparseStage {
  std::int32_t bin = -1;    // the bin of the threshold; -1: fewer numbers than wanted
  std::uint32_t above = 0;  // numbers in the bins above
};
static_assert(sparse_scratch_bytes(0) == (kSparseBins + 1) * sizeof(std::uint32_t) + sizeof(SparseStage));

// The bin of a size; -1 if it is not counted. stage: null in the first count.
LOCKSTEP_HOST_DEVICE inline int sparse_bin(std::uint32_t size, const SparseStage* stage) {
  if (size == 0) return -1;
  const auto coarse = static_cast<std::int32_t>(size >> kSparseCoarseShift);
  if (stage == nullptr) return coarse;
  if (coarse != stage->bin) return -1;
  return static_cast<int>((size >> kSparseFineShift) & (kSparseBins - 1));
}

// Starting at the largest size, the first bin at whose lower end about `kept` of all numbers are reached.
LOCKSTEP_HOST_DEVICE inline SparseStage sparse_reached(const std::uint32_t* bins, const SparseSample& sample,
                                                       std::int64_t kept, std::uint32_t above) {
  const double wanted =
      static_cast<double>(kept) * static_cast<double>(sample.numbers()) / static_cast<double>(sample.count);
  for (int bin = kSparseBins - 1; bin >= 0; --bin) {
    if (static_cast<double>(above) + static_cast<double>(bins[bin]) >= wanted) return {bin, above};
    above += bins[bin];
  }
  return {-1, above};
}

// The threshold from the bins of both counts.
LOCKSTEP_HOST_DEVICE inline std::uint32_t sparse_threshold(const SparseStage& coarse,
                                                           const SparseStage& fine) {
  if (coarse.bin < 0) return 1;
  const std::uint32_t low = static_cast<std::uint32_t>(coarse.bin) << kSparseCoarseShift;
  if (fine.bin < 0) return low > 0 ? low : 1;
  const std::uint32_t threshold = low | (static_cast<std::uint32_t>(fine.bin) << kSparseFineShift);
  return threshold > 0 ? threshold : 1;
}

}  // namespace lockstep
