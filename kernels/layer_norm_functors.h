// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of layer normalisation, for host and device.
#pragma once

#include <cmath>

#include "kernels/functors.h"
#include "kernels/layer_norm.h"

namespace lockstep {

LOCKSTEP_HOST_DEVICE inline LayerNormMoments layer_norm_moments(double mean, double variance, float epsilon) {
  return {static_cast<float>(mean),
          static_cast<float>(1.0 / std::sqrt(variance + static_cast<double>(epsilon)))};
}

LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE float normalized(const LayerNormMoments& moments, float x) {
  return (x - moments.mean) * moments.factor;
}

// The gradient of x, from the means over the sample of g and of g * normalized(x), where g is scale * y's
// gradient.
LOCKSTEP_HOST_DEVICE LOCKSTEP_INLINE float layer_norm_slope(const LayerNormMoments& moments, float x, float g,
                                                            float mean_g, float mean_product) {
  return moments.factor * (g - mean_g - normalized(moments, x) * mean_product);
}

}  // namespace lockstep
