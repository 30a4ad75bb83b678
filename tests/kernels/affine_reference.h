// SPDX-License-Identifier: Apache-2.0
//
// The reference of the affine kernels: naive convolution in double precision and its exact adjoints, and a
// runner that copies a planned kernel's tensors from and to plain memory. A linear layer is a convolution of
// 1x1 images.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "core/tensor/buffer.h"
#include "kernels/backend.h"

namespace lockstep {

using Values = std::vector<float>;
using Doubles = std::vector<double>;

// True if both have equally many elements that are not zero; NaN is not zero.
bool equally_many_nonzero(const Values& a, const Values& b);
// Uniform in [-1, 1). The same purpose gives the same values.
Values random_values(std::int64_t count, std::string_view purpose);
Doubles widen(const Values& values);
// Rounds to the nearest values that the type represents.
Values rounded(const Values& values, DType type);
// The largest relative error of rounded(); 0 for fp32.
double roundoff(DType type);
double dot(const Doubles& a, const Doubles& b);
// |actual - expected| / |expected| in the Euclidean norm; |actual| where expected is zero.
double relative_error(const Values& actual, const Doubles& expected);

// A linear layer is a convolution of images of one pixel.
inline ConvolutionShape as_convolution(const LinearShape& s) {
  return {.batch = s.batch,
          .in_channels = s.in_features,
          .in_height = 1,
          .in_width = 1,
          .out_channels = s.out_features,
          .bias = s.bias,
          .activation = s.activation};
}

// PyTorch's relu and relu6: NaN stays NaN.
template <typename T>
T activated(Activation activation, T x) {
  if (activation == Activation::none || std::isnan(x)) return x;
  return std::clamp(x, T{0}, activation == Activation::relu6 ? T{6} : std::numeric_limits<T>::infinity());
}

// bias may be empty.
Doubles reference_forward(const ConvolutionShape& shape, const Doubles& x, const Doubles& w,
                          const Doubles& bias);
Doubles reference_backward_data(const ConvolutionShape& shape, const Doubles& y_gradient, const Doubles& w);
Doubles reference_backward_weights(const ConvolutionShape& shape, const Doubles& x,
                                   const Doubles& y_gradient);
Doubles reference_backward_bias(const ConvolutionShape& shape, const Doubles& y_gradient);

// Converts to and from memory of the type.
std::vector<std::byte> to_elements(const Values& values, DType type);
Values from_elements(const void* data, std::size_t bytes, DType type);

// Copies plain values into new memory of the layout and its type, and back.
Buffer to_memory(const Values& plain, const Layout& layout);
Values to_plain(const Buffer& memory, const Layout& layout);

// Calls a kernel with plain tensors. Before every call, scratch memory and the memory of outputs and input
// gradients hold NaNs: results must not depend on it.
class AffineRunner {
 public:
  struct Gradients {
    Values weights;
    Values bias;
  };

  AffineRunner(AffineKernel& kernel, std::int64_t bias_elements);

  Values forward(const Values& x, const Values& w, const Values& bias);
  Values backward_data(const Values& y_gradient, const Values& w);
  // before: the gradients when the call begins. The call overwrites them or adds to them.
  Gradients backward_weights(const Values& x, const Values& y_gradient, const Gradients& before, Write write);
  // True if the padding of the last call's output or gradient holds only zeros.
  bool padding_is_zero() const { return padding_is_zero_; }

 private:
  void* spoiled_scratch();
  Values plain_result(const Buffer& memory, const Layout& layout);

  AffineKernel& kernel_;
  std::int64_t bias_elements_;
  Stream stream_{Device{}, StreamUse::compute};
  Buffer scratch_;
  bool padding_is_zero_ = false;
};

}  // namespace lockstep
