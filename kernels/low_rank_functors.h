// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of kernels/low_rank.h for one element, on host and device.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/random.h"
#include "kernels/functors.h"

namespace lockstep {

// The factor between the matrix and the gradient memory: *loss_scale / *learning_rate. See LowRankRows and
// LowRankDecode.
template <typename Arguments>
LOCKSTEP_HOST_DEVICE float gradient_scale(const Arguments& a) {
  const float scale = a.loss_scale == nullptr ? 1.0f : *a.loss_scale;
  return a.learning_rate == nullptr ? scale : scale / *a.learning_rate;
}

// Error feedback: adds the residual of earlier steps to a gradient. T is float, or a vector of floats.
struct Compensate {
  float factor = 1;  // 1 / gradient_scale()

  template <typename T>
  LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE T operator()(T gradient, T residual) const {
    return gradient * factor + residual;
  }
};

// The factor that scales a vector to length 1, from its squared length. NaN stays NaN.
struct UnitScale {
  static constexpr double kLeastLength = 1e-30;

  LOCKSTEP_HOST_DEVICE double operator()(double squared) const {
    if (squared <= kLeastLength * kLeastLength) return 0;
    return 1 / std::sqrt(squared);
  }
};

// A random initial value for element i of column k of a factor.
struct RandomStart {
  PhiloxKey key;

  LOCKSTEP_HOST_DEVICE float operator()(std::int64_t k, std::int64_t i) const {
    const PhiloxCounter words = philox({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32),
                                        static_cast<std::uint32_t>(k), 0},
                                       key);
    return static_cast<float>(words[0] >> 8) * 0x1p-23f - 1.0f;
  }
};

}  // namespace lockstep
