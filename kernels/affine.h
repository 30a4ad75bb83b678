// SPDX-License-Identifier: Apache-2.0
//
// Convolution and linear layer: both apply weights and a bias to an activation, so both are one kind of
// kernel. Planned once for fixed shapes; a call allocates nothing. Weights keep the layout the kernel chose,
// all through training: gradients and optimizer state follow it. In half precision activations, weights and
// their gradients are half, products are summed in fp32, and bias and its gradient are fp32.
#pragma once

#include <cstdint>
#include <string>

#include "core/layout.h"
#include "core/parameter.h"
#include "core/stream.h"
#include "kernels/activation.h"

namespace lockstep {

// Input [batch, in_channels, in_height, in_width]; output [batch, out_channels, out_height(), out_width()];
// weights [out_channels, in_channels / groups, kernel, kernel]; bias [out_channels].
struct ConvolutionShape {
  std::int64_t batch = 0;
  std::int64_t in_channels = 0;
  std::int64_t in_height = 0;
  std::int64_t in_width = 0;
  std::int64_t out_channels = 0;
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t dilation = 1;  // 1: dense
  std::int64_t groups = 1;
  bool bias = false;
  Activation activation = Activation::none;  // output = activation(weights * input + bias)
  bool input_gradient = true;                // false: backward_data is not planned
  // fp32 on a GPU: operands may be rounded to TF32's 10 bits of mantissa.
  bool tf32 = false;

  std::int64_t out_height() const {
    return (in_height + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
  }
  std::int64_t out_width() const {
    return (in_width + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
  }
};

// Input [batch, ...] with in_features elements a sample (flattened in C, H, W order); output
// [batch, out_features]; weights [out_features, in_features]; bias [out_features].
struct LinearShape {
  std::int64_t batch = 0;
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  bool bias = true;
  Activation activation = Activation::none;
  bool input_gradient = true;
  bool tf32 = false;
};

// Which of several ways computes each direction, by name, for people; empty where there was no choice.
struct AffineChoice {
  std::string forward;
  std::string backward_data;
  std::string backward_weights;
};

class AffineKernel {
 public:
  virtual ~AffineKernel() = default;

  // Layouts of value and gradient alike. The input's is the one the kernel was planned with.
  const Layout& input() const { return input_; }
  const Layout& output() const { return output_; }
  // Its shape is the one above; only the arrangement is the kernel's.
  const Layout& weights() const { return weights_; }
  // Scratch memory every call needs at `scratch`, aligned to kAlignment.
  std::size_t scratch_bytes() const { return scratch_bytes_; }

  const AffineChoice& choice() const { return choice_; }

  // output = activation(weights * input + bias). bias is null exactly when the shape has none.
  virtual void forward(Stream& stream, const void* input, const void* weights, const float* bias,
                       void* output, void* scratch) = 0;
  // Backward starts behind the activation: output_gradient is that of weights * input + bias.
  // input_gradient = weights^T * output_gradient.
  virtual void backward_data(Stream& stream, const void* output_gradient, const void* weights,
                             void* input_gradient, void* scratch) = 0;
  // weights_gradient (+)= output_gradient * input^T; bias_gradient (+)= sum of output_gradient.
  virtual void backward_weights(Stream& stream, const void* input, const void* output_gradient,
                                void* weights_gradient, float* bias_gradient, Write write, void* scratch) = 0;

 protected:
  Layout input_;
  Layout output_;
  Layout weights_;
  std::size_t scratch_bytes_ = 0;
  AffineChoice choice_;
};

}  // namespace lockstep
