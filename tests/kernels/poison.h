// SPDX-License-Identifier: Apache-2.0
//
// Puts non-finite values into one input element after another; PyTorch's results for such inputs.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "kernels/activation.h"
#include "kernels/pooling.h"
#include "tests/kernels/affine_reference.h"
#include "tests/thinning.h"

namespace lockstep {

inline constexpr float kPoisons[] = {
    std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
    std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};

// Calls test(values with one non-finite element, index of the element, its value) for every `step`-th
// element; under a sanitizer for every kOneOf-th of these.
template <typename Test>
void for_each_poison(const Values& values, Test test, std::size_t step = 1) {
  Values poisoned = values;
  for (std::size_t at = 0; at < values.size(); at += step * kOneOf) {
    for (const float poison : kPoisons) {
      poisoned[at] = poison;
      test(poisoned, at, poison);
      if (testing::Test::HasFatalFailure()) return;
    }
    poisoned[at] = values[at];
  }
}

// True if both are NaN or both are equal.
inline bool same_number(float a, float b) { return (std::isnan(a) && std::isnan(b)) || a == b; }

// True if the gradient passes at this input. PyTorch blocks it where x <= 0, or x >= 6 in relu6.
inline bool activation_passes(Activation activation, float x) {
  if (activation == Activation::none) return true;
  return !(x <= 0) && !(activation == Activation::relu6 && x >= 6);
}

// Pooling in fp64. NaN counts as larger than all numbers.
template <typename Numbers>
Doubles pooled(const PoolingOptions& o, const Shape& in, const Numbers& x) {
  const std::int64_t height = in[2], width = in[3];
  Doubles y;
  for (std::int64_t plane = 0; plane < in[0] * in[1]; ++plane) {
    for (std::int64_t row = 0; row < o.out_size(height); ++row) {
      for (std::int64_t column = 0; column < o.out_size(width); ++column) {
        const std::int64_t top = o.global ? 0 : row * o.stride - o.padding;
        const std::int64_t left = o.global ? 0 : column * o.stride - o.padding;
        const std::int64_t bottom = o.global ? height : std::min(top + o.kernel, height);
        const std::int64_t right = o.global ? width : std::min(left + o.kernel, width);
        double largest = -std::numeric_limits<double>::infinity(), sum = 0, count = 0;
        for (std::int64_t h = std::max<std::int64_t>(top, 0); h < bottom; ++h) {
          for (std::int64_t w = std::max<std::int64_t>(left, 0); w < right; ++w) {
            const auto value =
                static_cast<double>(x[static_cast<std::size_t>((plane * height + h) * width + w)]);
            if (value > largest || std::isnan(value)) largest = value;
            sum += value;
            count += 1;
          }
        }
        y.push_back(o.kind == PoolingKind::max ? largest : sum / count);
      }
    }
  }
  return y;
}

// The fp64 reference has NaN where PyTorch has. An infinity may be NaN in the kernel (Winograd's tiles).
inline void expect_not_finite_where(const Doubles& expected, const Values& actual) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!std::isfinite(expected[i])) {
      ASSERT_FALSE(std::isfinite(actual[i])) << "element " << i << " hides " << expected[i];
    }
  }
}

// Poisons elements of the input, weights and bias of a planned kernel. as_convolution has the kernel's sizes.
inline void expect_affine_poison(AffineKernel& kernel, const ConvolutionShape& as_convolution) {
  const DType type = kernel.input().dtype();
  const Values x = rounded(random_values(kernel.input().shape().elements(), "x"), type);
  const Values w = rounded(random_values(kernel.weights().shape().elements(), "w"), type);
  const Values bias = random_values(as_convolution.out_channels, "bias");
  AffineRunner runner(kernel, as_convolution.out_channels);
  Values all = x;
  for (const Values& more : {w, bias}) all.insert(all.end(), more.begin(), more.end());
  // All elements of small layers, every 29th of larger ones.
  const std::size_t step = all.size() > 200 ? 29 : 1;
  for_each_poison(
      all,
      [&](const Values& poisoned, std::size_t at, float poison) {
        const auto x_end = poisoned.begin() + static_cast<std::ptrdiff_t>(x.size());
        const auto w_end = x_end + static_cast<std::ptrdiff_t>(w.size());
        const Values xs(poisoned.begin(), x_end), ws(x_end, w_end), biases(w_end, poisoned.end());
        Doubles expected = reference_forward(as_convolution, widen(xs), widen(ws), widen(biases));
        for (double& value : expected) value = activated(as_convolution.activation, value);
        SCOPED_TRACE(testing::Message() << poison << " at " << at);
        expect_not_finite_where(expected, runner.forward(xs, ws, biases));
      },
      step);
}

}  // namespace lockstep
