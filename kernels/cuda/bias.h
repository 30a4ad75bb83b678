// SPDX-License-Identifier: Apache-2.0
//
// What cuDNN and cuBLASLt leave of an affine layer: its bias, which is fp32 whatever the type of the
// activations, with the activation in the same pass, and the bias' gradient, summed in a fixed order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "core/stream.h"
#include "kernels/activation.h"
#include "kernels/affine.h"

namespace lockstep {

// An affine layer's output: a row for each pixel.
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

// gradient (+)= sum over the rows of y_gradient
struct BiasGradient {
  const void* y_gradient = nullptr;
  float* gradient = nullptr;
  Write write = Write::overwrite;
  void* scratch = nullptr;  // aligned to kAlignment
};
std::size_t cuda_bias_gradient_scratch_bytes(const CudaRows& rows);
void cuda_bias_gradient(Stream& stream, const CudaRows& rows, const BiasGradient& arguments);

}  // namespace lockstep
