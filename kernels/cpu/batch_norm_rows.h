// SPDX-License-Identifier: Apache-2.0
//
// The inner loops of batch norm on the CPU, over one row of memory: `positions` groups of `lanes` adjacent
// values, one value for each of `lanes` channels. Blocked layouts have 4, 8 or 16 lanes, channels-last
// layouts one per channel, plain images one. Tensors may be half, arithmetic is fp32. Compiled for several
// instruction sets, chosen at run time.
#pragma once

#include <cstdint>

#include "core/tensor/dtype.h"
#include "kernels/activation.h"

namespace lockstep {

struct BatchNormRow {
  std::int64_t positions = 0;
  std::int64_t lanes = 0;
  DType type = DType::f32;  // of x, y, the residual and their gradients
};

// sum += x - shift, square += (x - shift)^2; each [lanes]. A shift near the mean preserves precision.
void add_moments(const BatchNormRow& row, const void* x, const float* shift, double* sum, double* square);

// y = activation(slope * (x - mean) + offset (+ residual)); slope, mean and offset are [lanes]. passed is set
// to 1 where the activation's slope is 1, else 0; residual and passed may be null.
struct NormalizeRow {
  const void* x = nullptr;
  const void* residual = nullptr;
  const float* slope = nullptr;
  const float* mean = nullptr;
  const float* offset = nullptr;
  void* y = nullptr;
  std::uint8_t* passed = nullptr;
};
void normalize(const BatchNormRow& row, Activation activation, const NormalizeRow& n);

// The gradient of the activation's input, g = y_gradient where the activation passed its input: read from
// `passed` or, if that is null, recomputed as NormalizeRow does without a residual. sum += g, product += g *
// (x - mean). g is written to residual_gradient unless that is null (it may be y_gradient).
struct GradientSumsRow {
  const void* x = nullptr;
  const void* y_gradient = nullptr;
  const std::uint8_t* passed = nullptr;
  const float* slope = nullptr;
  const float* mean = nullptr;
  const float* offset = nullptr;
  void* residual_gradient = nullptr;
  double* sum = nullptr;
  double* product = nullptr;
};
void add_gradient_sums(const BatchNormRow& row, Activation activation, const GradientSumsRow& g);

// x_gradient = factor * (g + (by_x * (x - mean) + constant)), with g as above (pass Activation::none if
// y_gradient is g already). x_gradient may be y_gradient. The factor is applied last: factor * by_x contains
// (1 / deviation)^3 and could underflow although the result does not.
struct InputGradientRow {
  const void* x = nullptr;
  const void* y_gradient = nullptr;
  const float* slope = nullptr;
  const float* mean = nullptr;
  const float* offset = nullptr;
  const float* factor = nullptr;
  const float* by_x = nullptr;
  const float* constant = nullptr;
  void* x_gradient = nullptr;
};
void write_input_gradient(const BatchNormRow& row, Activation activation, const InputGradientRow& g);

}  // namespace lockstep
