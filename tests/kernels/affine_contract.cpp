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

// loss(at) differentiated along a random direction, against the gradient the kernel gave.
template <typename Loss>
void expect_slope(const char* what, const Values& gradient, const Doubles& at, double tolerance, Loss loss) {
  const Doubles direction = widen(random_values(static_cast<std::int64_t>(at.size()), what));
  constexpr double kStep = 1e-3;
  const double slope = (loss(plus(at, kStep, direction)) - loss(plus(at, -kStep, direction))) / (2 * kStep);
  const Doubles widened = widen(gradient);
  const double size = std::sqrt(dot(widened, widened) * dot(direction, direction));
  EXPECT_NEAR(dot(widened, direction), slope, tolerance * std::max(size, 1e-3)) << what;
}

struct Case {
  ConvolutionShape shape;
  double tolerance;
  Values x, w, bias, y_gradient;

  Case(const AffineKernel& kernel, const ConvolutionShape& s, double allowed)
      : shape(s),
        tolerance(allowed),
        x(random_values(kernel.input().shape().elements(), "input")),
        w(random_values(kernel.weights().shape().elements(), "weights")),
        bias(random_values(s.bias ? s.out_channels : 0, "bias")),
        y_gradient(random_values(kernel.output().shape().elements(), "output gradient")) {}

  double loss(const Doubles& at_x, const Doubles& at_w, const Doubles& at_bias) const {
    return dot(widen(y_gradient), reference_forward(shape, at_x, at_w, at_bias));
  }
};

void expect_forward(AffineRunner& runner, const Case& c) {
  Doubles expected = reference_forward(c.shape, widen(c.x), widen(c.w), widen(c.bias));
  const double highest = c.shape.activation == Activation::relu6 ? 6.0 : HUGE_VAL;
  if (c.shape.activation != Activation::none) {
    for (double& value : expected) value = std::clamp(value, 0.0, highest);
  }
  const Values y = runner.forward(c.x, c.w, c.bias);
  EXPECT_LT(relative_error(y, expected), c.tolerance);
  EXPECT_EQ(runner.nonzero_outputs(), std::ranges::count_if(y, [](float value) { return value != 0; }))
      << "padding is not zero";
}

void expect_backward_data(AffineRunner& runner, const Case& c) {
  const Values gradient = runner.backward_data(c.y_gradient, c.w);
  EXPECT_LT(relative_error(gradient, reference_backward_data(c.shape, widen(c.y_gradient), widen(c.w))),
            c.tolerance);
  expect_slope("slope of input", gradient, widen(c.x), c.tolerance,
               [&](const Doubles& x) { return c.loss(x, widen(c.w), widen(c.bias)); });
}

void expect_backward_weights(AffineRunner& runner, const Case& c) {
  const AffineRunner::Gradients before{
      .weights = random_values(static_cast<std::int64_t>(c.w.size()), "weights gradient before"),
      .bias = random_values(static_cast<std::int64_t>(c.bias.size()), "bias gradient before")};
  const auto written = runner.backward_weights(c.x, c.y_gradient, before, Write::overwrite);
  EXPECT_LT(
      relative_error(written.weights, reference_backward_weights(c.shape, widen(c.x), widen(c.y_gradient))),
      c.tolerance);
  expect_slope("slope of weights", written.weights, widen(c.w), c.tolerance,
               [&](const Doubles& w) { return c.loss(widen(c.x), w, widen(c.bias)); });
  if (c.shape.bias) {
    EXPECT_LT(relative_error(written.bias, reference_backward_bias(c.shape, widen(c.y_gradient))),
              c.tolerance);
    expect_slope("slope of bias", written.bias, widen(c.bias), c.tolerance,
                 [&](const Doubles& bias) { return c.loss(widen(c.x), widen(c.w), bias); });
  }

  const auto summed = runner.backward_weights(c.x, c.y_gradient, before, Write::accumulate);
  const auto add = [](const Values& a, const Values& b) {
    Values sum = a;
    std::ranges::transform(a, b, sum.begin(), std::plus<float>());
    return sum;
  };
  // Pieces of a batch are added one by one.
  EXPECT_LT(relative_error(summed.weights, widen(add(before.weights, written.weights))), 1e-6);
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
