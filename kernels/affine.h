// SPDX-License-Identifier: Apache-2.0
//
// Convolution and linear layer: both apply weights and a bias to an activation, so both are an AffineKernel:
// three AffineProducts, one per direction, that compute on AffineOperands. A backend plans them once for
// fixed shapes; a call allocates nothing. Weights keep the layout that the forward product chose for the
// whole training; their gradients and optimizer state use it, too. In half precision, activations, weights
// and their gradients are half, products are summed in fp32, and bias and its gradient are fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/stream.h"
#include "core/tensor/layout.h"
#include "core/tensor/parameter.h"
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
  // backward_data may add to the existing gradient: see AffineKernel::adds_input_gradient.
  bool adds_input_gradient = false;
  bool weight_gradient = true;  // false: backward_weights is not planned
  // fp32 on a GPU: allows rounding operands to TF32 (10 bits of mantissa).
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
  bool weight_gradient = true;
  bool tf32 = false;
};

enum class AffineDirection { forward, backward_data, backward_weights };

constexpr std::string_view name_of(AffineDirection direction) {
  switch (direction) {
    case AffineDirection::forward:
      return "forward";
    case AffineDirection::backward_data:
      return "backward data";
    case AffineDirection::backward_weights:
      return "backward weights";
  }
  return "?";
}

// The memory that a call of one direction works on. It writes the direction's result and reads the other two:
// y = w * x, x = w^T * y, or w = y * x^T.
struct AffineOperands {
  const void* x = nullptr;
  const void* w = nullptr;
  const void* y = nullptr;
  float* bias = nullptr;           // forward reads it; backward_weights writes its gradient; null: none
  Write write = Write::overwrite;  // for the gradients of weights and bias
  void* scratch = nullptr;

  bool operator==(const AffineOperands&) const = default;
};

// One algorithm for one direction, planned for fixed shapes.
struct AffineProduct {
  std::string name;  // the algorithm's name, for users and for KernelChoices
  std::size_t scratch_bytes = 0;
  bool adds = false;  // accepts Write::accumulate
  // Allocates nothing.
  std::function<void(Stream& stream, const AffineOperands& operands)> run;
};

class AffineKernel {
 public:
  struct Plan {
    // Layouts of the values and of their gradients. The input's is the one that the kernel was planned with.
    Layout input;
    Layout output;
    Layout weights;  // its shape is that of ConvolutionShape or LinearShape; the kernel chooses only the
                     // arrangement
    AffineProduct forward;
    std::optional<AffineProduct> backward_data;     // none: planned without the input's gradient
    std::optional<AffineProduct> backward_weights;  // none: planned without the weights' gradient
    bool adds_input_gradient = false;
  };
  explicit AffineKernel(Plan plan) : plan_(std::move(plan)) {}

  const Layout& input() const { return plan_.input; }
  const Layout& output() const { return plan_.output; }
  const Layout& weights() const { return plan_.weights; }
  // Bytes of scratch memory that every call needs at `scratch`, aligned to kAlignment.
  std::size_t scratch_bytes() const;
  // True if backward_data adds to the existing gradient. Only if the shape requested it.
  bool adds_input_gradient() const { return plan_.adds_input_gradient; }
  // The name of the direction's product; empty if it has none.
  std::string choice(AffineDirection direction) const;

  // output = activation(weights * input + bias). bias is null if and only if the shape has none.
  void forward(Stream& stream, const void* input, const void* weights, const float* bias, void* output,
               void* scratch) const;
  // output_gradient is the gradient of weights * input + bias, before the activation. input_gradient (+)=
  // weights^T * output_gradient.
  void backward_data(Stream& stream, const void* output_gradient, const void* weights, void* input_gradient,
                     void* scratch) const;
  // weights_gradient (+)= output_gradient * input^T; bias_gradient (+)= sum of output_gradient.
  void backward_weights(Stream& stream, const void* input, const void* output_gradient,
                        void* weights_gradient, float* bias_gradient, Write write, void* scratch) const;

 private:
  Plan plan_;
};

}  // namespace lockstep
