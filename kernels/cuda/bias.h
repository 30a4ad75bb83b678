// SPDX-License-Identifier: Apache-2.0
//
// The part of an affine layer that cuDNN and cuBLASLt do not compute: the bias, which is fp32 for every type
// of activations, with the activation in the same pass, and the gradient of the bias, summed in a fixed
// order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/stream.h"
#include "core/tensor/dtype.h"
#include "kernels/activation.h"
#include "kernels/affine.h"

namespace lockstep {

// An affine layer's output as [rows, channels], one row per pixel.
struct CudaRows {
  DType type = DType::f32;
  std::int64_t rows = 0;
  std::int64_t channels = 0;

  std::int64_t elements() const { return rows * channels; }
};

// y = activation(y + bias)
struct BiasActivation {
  Activation activation = Activation::none;
  const float* bias = nullptr;
  void* y = nullptr;
};
void cuda_bias_activation(Stream& stream, const CudaRows& rows, const BiasActivation& arguments);

// gradient (+)= sum over rows of y_gradient; [channels].
struct BiasGradient {
  const void* y_gradient = nullptr;
  float* gradient = nullptr;
  Write write = Write::overwrite;
  void* scratch = nullptr;  // aligned to kAlignment
};
std::size_t cuda_bias_gradient_scratch_bytes(const CudaRows& rows);
void cuda_bias_gradient(Stream& stream, const CudaRows& rows, const BiasGradient& arguments);

}  // namespace lockstep
