// SPDX-License-Identifier: Apache-2.0
//
// Layer normalisation over all features of each sample (Ba, Kiros and Hinton, 2016):
//   y = (x - mean) / sqrt(variance + epsilon) * scale + shift
// with the biased variance, and a scale and a shift for each feature. Tensors are plain, [batch, features].
#pragma once

#include <cstdint>

#include "core/tensor/dtype.h"
#include "core/tensor/parameter.h"

namespace lockstep {

// The moments of one sample.
struct LayerNormMoments {
  float mean = 0;
  float factor = 0;  // 1 / sqrt(variance + epsilon)
};

struct LayerNormForward {
  std::int64_t batch = 0;
  std::int64_t features = 0;
  DType type = DType::f32;  // of x, y and their gradients
  float epsilon = 1e-5f;
  const void* x = nullptr;
  const float* scale = nullptr;         // [features]
  const float* shift = nullptr;         // [features]
  void* y = nullptr;                    // may be x, unless a backward follows
  LayerNormMoments* moments = nullptr;  // [batch]; written for backward; null: not wanted
};

struct LayerNormBackward {
  std::int64_t batch = 0;
  std::int64_t features = 0;
  DType type = DType::f32;
  const void* x = nullptr;
  const void* y_gradient = nullptr;
  const float* scale = nullptr;
  const LayerNormMoments* moments = nullptr;
  void* x_gradient = nullptr;       // may be y_gradient; null: not wanted
  float* scale_gradient = nullptr;  // [features]; null: not wanted, and neither is the shift's
  float* shift_gradient = nullptr;
  Write write = Write::overwrite;  // of the last two
};

}  // namespace lockstep
