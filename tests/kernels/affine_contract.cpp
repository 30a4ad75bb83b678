// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/affine_contract.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

Doubles plus(const Doubles& a, double factor, const Doubles& b) {
  Doubles sum = a;
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += factor * b[i];
  return sum;
}

// Compares the slope of the loss along a random direction with the kernel's gradient. The loss is linear in
// x and in w, so loss(direction), with the direction in place of the values, is the slope.
template <typename Loss>
void expect_slope(const char* what, const Values& gradient, double tolerance, Loss loss) {
  const Doubles direction = widen(random_values(static_cast<std::int64_t>(gradient.size()), what));
  const Doubles widened = widen(gradient);
  const double size = std::sqrt(dot(widened, widened) * dot(direction, direction));
  EXPECT_NEAR(dot(widened, direction), loss(direction), tolerance * std::max(size, 1e-3)) << what;
}

// Expects each element to differ by at most one rounding to the type and an fp32 error.
void expect_rounded_once(const Values& actual, const Doubles& expected, DType type, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  constexpr double kSubnormal = 0x1p-25;  // fp16's
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i],
                roundoff(type) * std::abs(expected[i]) + 2 * tolerance * largest + kSubnormal)
        << "at " << i;
  }
}

struct Case {
  ConvolutionShape shape;
  DType type;
  double tolerance;
  Values x, w, bias, y_gradient;

  Case(const AffineKernel& kernel, const ConvolutionShape& s, double allowed)
      : shape(s),
        type(kernel.input().dtype()),
        tolerance(allowed),
        x(tensor(kernel.input(), "input")),
        w(tensor(kernel.weights(), "weights")),
        bias(random_values(s.bias ? s.out_channels : 0, "bias")),
        y_gradient(tensor(kernel.output(), "output gradient")) {}

  static Values tensor(const Layout& layout, const char* purpose) {
    return rounded(random_values(layout.shape().elements(), purpose), layout.dtype());
  }
  // For stored tensors: rounding to the type adds as much again.
  double stored_tolerance() const { return tolerance + roundoff(type); }
  void expect_tensor(const Values& actual, const Doubles& expected) const {
    EXPECT_LT(relative_error(actual, expected), stored_tolerance());
    if (type != DType::f32) expect_rounded_once(actual, expected, type, tolerance);
  }

  // Without the bias.
  double loss(const Doubles& at_x, const Doubles& at_w) const {
    return dot(widen(y_gradient), reference_forward(shape, at_x, at_w, {}));
  }
};

void expect_forward(AffineRunner& runner, const Case& c) {
  Doubles expected = reference_forward(c.shape, widen(c.x), widen(c.w), widen(c.bias));
  for (double& value : expected) value = activated(c.shape.activation, value);
  const Values y = runner.forward(c.x, c.w, c.bias);
  c.expect_tensor(y, expected);
  EXPECT_TRUE(runner.padding_is_zero());
}

void expect_backward_data(AffineRunner& runner, const Case& c) {
  const Values gradient = runner.backward_data(c.y_gradient, c.w);
  c.expect_tensor(gradient, reference_backward_data(c.shape, widen(c.y_gradient), widen(c.w)));
  EXPECT_TRUE(runner.padding_is_zero());
  expect_slope("slope of input", gradient, c.stored_tolerance(),
               [&](const Doubles& x) { return c.loss(x, widen(c.w)); });
}

void expect_backward_weights(AffineRunner& runner, const Case& c) {
  const AffineRunner::Gradients before{
      .weights =
          rounded(random_values(static_cast<std::int64_t>(c.w.size()), "weights gradient before"), c.type),
      .bias = random_values(static_cast<std::int64_t>(c.bias.size()), "bias gradient before")};
  const auto written = runner.backward_weights(c.x, c.y_gradient, before, Write::overwrite);
  const Doubles expected = reference_backward_weights(c.shape, widen(c.x), widen(c.y_gradient));
  c.expect_tensor(written.weights, expected);
  EXPECT_TRUE(runner.padding_is_zero());
  expect_slope("slope of weights", written.weights, c.stored_tolerance(),
               [&](const Doubles& w) { return c.loss(widen(c.x), w); });
  if (c.shape.bias) {
    EXPECT_LT(relative_error(written.bias, reference_backward_bias(c.shape, widen(c.y_gradient))),
              c.tolerance);
  }

  const auto summed = runner.backward_weights(c.x, c.y_gradient, before, Write::accumulate);
  const auto add = [](const Values& a, const Values& b) {
    Values sum = a;
    std::ranges::transform(a, b, sum.begin(), std::plus<float>());
    return sum;
  };
  // The pieces of a batch are added one by one.
  if (c.type == DType::f32) {
    EXPECT_LT(relative_error(summed.weights, widen(add(before.weights, written.weights))), 1e-6);
  } else {
    c.expect_tensor(summed.weights, plus(expected, 1, widen(before.weights)));
  }
  EXPECT_LT(relative_error(summed.bias, widen(add(before.bias, written.bias))), 1e-6);
}

}  // namespace

void expect_affine_contract(AffineKernel& kernel, const ConvolutionShape& as_convolution, double tolerance) {
  SCOPED_TRACE("input " + kernel.input().describe() + "; weights " + kernel.weights().describe() +
               "; output " + kernel.output().describe());
  const Case c(kernel, as_convolution, tolerance);
  AffineRunner runner(kernel, static_cast<std::int64_t>(c.bias.size()));
  expect_forward(runner, c);
  expect_backward_data(runner, c);
  expect_backward_weights(runner, c);
}

}  // namespace lockstep
