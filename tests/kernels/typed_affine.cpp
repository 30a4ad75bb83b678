// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/typed_affine.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

class TypedAffine {
 public:
  TypedAffine(const Lab& lab, AffineKernel& kernel, const ConvolutionShape& shape, double tolerance)
      : lab_(lab),
        kernel_(kernel),
        shape_(shape),
        tolerance_(tolerance),
        x_(values(kernel.input(), "input")),
        w_(values(kernel.weights(), "weights")),
        y_gradient_(values(kernel.output(), "output gradient")),
        bias_(random_values(shape.bias ? shape.out_channels : 0, "bias")),
        x_memory_(lab, kernel.input(), x_),
        w_memory_(lab, kernel.weights(), w_),
        y_gradient_memory_(lab, kernel.output(), y_gradient_),
        bias_memory_(lab, DType::f32, bias_),
        scratch_(lab, Layout({static_cast<std::int64_t>(kernel.scratch_bytes() / sizeof(float)) + 1},
                             DType::f32)) {}

  void expect_forward() {
    Doubles expected = reference_forward(shape_, widen(x_), widen(w_), widen(bias_));
    for (double& value : expected) value = activated(shape_.activation, value);
    const TypedTensor y(lab_, kernel_.output());
    scratch_.poison();
    kernel_.forward(lab_.stream, x_memory_.data(), w_memory_.data(), bias_of(bias_memory_), y.data(),
                    scratch_.data());
    EXPECT_LT(relative_error(y.plain(), expected), tolerance_);
    EXPECT_TRUE(y.padding_is_zero());
  }

  void expect_backward_data() {
    const TypedTensor x_gradient(lab_, kernel_.input());
    scratch_.poison();
    kernel_.backward_data(lab_.stream, y_gradient_memory_.data(), w_memory_.data(), x_gradient.data(),
                          scratch_.data());
    EXPECT_LT(
        relative_error(x_gradient.plain(), reference_backward_data(shape_, widen(y_gradient_), widen(w_))),
        tolerance_);
    EXPECT_TRUE(x_gradient.padding_is_zero());
  }

  // Overwrites NaNs, then adds the same gradient again.
  void expect_backward_weights() {
    const Doubles weights = reference_backward_weights(shape_, widen(x_), widen(y_gradient_));
    const Doubles bias = shape_.bias ? reference_backward_bias(shape_, widen(y_gradient_)) : Doubles();
    const TypedTensor w_gradient(lab_, kernel_.weights());
    const TypedTensor bias_gradient(lab_, Layout({static_cast<std::int64_t>(bias_.size())}, DType::f32));
    double times = 1;
    for (const Write write : {Write::overwrite, Write::accumulate}) {
      SCOPED_TRACE(write == Write::overwrite ? "overwritten" : "added");
      scratch_.poison();
      kernel_.backward_weights(lab_.stream, x_memory_.data(), y_gradient_memory_.data(), w_gradient.data(),
                               bias_of(bias_gradient), write, scratch_.data());
      EXPECT_LT(relative_error(w_gradient.plain(), multiplied(weights, times)), tolerance_);
      EXPECT_TRUE(w_gradient.padding_is_zero());
      EXPECT_LT(relative_error(bias_gradient.plain(), multiplied(bias, times)), 1e-5);
      times += 1;
    }
  }

 private:
  static Values values(const Layout& layout, std::string_view purpose) {
    return rounded(random_values(layout.shape().elements(), purpose), layout.dtype());
  }
  static Doubles multiplied(Doubles values, double factor) {
    for (double& value : values) value *= factor;
    return values;
  }
  float* bias_of(const TypedTensor& bias) const { return shape_.bias ? bias.floats() : nullptr; }

  const Lab& lab_;
  AffineKernel& kernel_;
  ConvolutionShape shape_;
  double tolerance_;
  Values x_, w_, y_gradient_, bias_;
  TypedTensor x_memory_, w_memory_, y_gradient_memory_, bias_memory_, scratch_;
};

}  // namespace

void expect_typed_affine(const Lab& lab, AffineKernel& kernel, const ConvolutionShape& as_convolution,
                         double tolerance) {
  SCOPED_TRACE("input " + kernel.input().describe() + "; weights " + kernel.weights().describe() +
               "; output " + kernel.output().describe());
  TypedAffine affine(lab, kernel, as_convolution, tolerance);
  affine.expect_forward();
  if (as_convolution.input_gradient) affine.expect_backward_data();
  affine.expect_backward_weights();
}

}  // namespace lockstep
