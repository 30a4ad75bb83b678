// SPDX-License-Identifier: Apache-2.0
//
// NaN, +inf and -inf in each input element of the layers with an activation and of pooling. A result is not
// finite where PyTorch's is not, and elements that do not depend on the poisoned one stay finite.
#include "tests/kernels/poison.h"

#include <cmath>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/batch_norm_reference.h"
#include "tests/kernels/planned_memory.h"

namespace lockstep {
namespace {

class Poison : public testing::TestWithParam<DType> {
 protected:
  const DType type_ = GetParam();
  Stream stream_{Device{}, StreamUse::compute};
};
INSTANTIATE_TEST_SUITE_P(Types, Poison, testing::ValuesIn(kTypes),
                         [](const auto& type) { return std::string(name_of(type.param)); });

TEST_P(Poison, ActivationsKeepNan) {
  for (const Activation activation : {Activation::none, Activation::relu, Activation::relu6}) {
    for (const std::int64_t count : {1, 7, 16, 37}) {
      const Values x = rounded(random_values(count, "x"), type_);
      const Values ones(x.size(), 1.0f);
      for_each_poison(x, [&](const Values& poisoned, std::size_t at, float poison) {
        const GuardedMemory input(poisoned, type_), output(Values(x.size()), type_), given(ones, type_);
        cpu_backend().activation_forward(stream_, {activation, type_, count, input.data(), output.data()});
        EXPECT_TRUE(same_number(output.values()[at], activated(activation, poison))) << poison;
        cpu_backend().activation_backward(
            stream_, {activation, type_, count, output.data(), given.data(), input.data()});
        EXPECT_EQ(input.values()[at], activation_passes(activation, poison) ? 1.0f : 0.0f) << poison;
      });
    }
  }
}

// Results in the poisoned element's channel are not finite where PyTorch's are not. Those in other channels
// stay finite.
TEST_P(Poison, SpreadsThroughBatchNormAndItsActivation) {
  for (const Layout& layout : layouts_for({2, 17, 2, 3}, type_)) {
    for (const Activation activation : {Activation::none, Activation::relu, Activation::relu6}) {
      for (const bool residual : {false, true}) {
        SCOPED_TRACE(fmt::format("{}, activation {}, residual {}", layout.describe(),
                                 static_cast<int>(activation), residual));
        const BatchNormOptions options{.activation = activation, .residual = residual};
        const auto kernel = cpu_backend().batch_norm(options, layout);
        const BatchNormReference reference(layout.shape(), options);
        const std::int64_t channels = layout.shape()[1];
        const auto elements = static_cast<std::size_t>(layout.shape().elements());
        const Values x = rounded(random_values(layout.shape().elements(), "x"), type_);
        const Values added = rounded(random_values(layout.shape().elements(), "residual"), type_);
        const Values scale = random_values(channels, "scale"), shift = random_values(channels, "shift");
        Values all = x;  // then the residual, scale and shift
        for (const Values& more : {added, scale, shift}) all.insert(all.end(), more.begin(), more.end());
        const GuardedMemory saved(kernel->saved_bytes()), scratch(kernel->scratch_bytes());
        for_each_poison(all, [&](const Values& poisoned, std::size_t at, float poison) {
          if (!residual && at >= elements && at < 2 * elements) return;
          const auto part = [&](std::size_t begin, std::size_t count) {
            const auto first = poisoned.begin() + static_cast<std::ptrdiff_t>(begin);
            return Values(first, first + static_cast<std::ptrdiff_t>(count));
          };
          const Values xs = part(0, elements), residuals = part(elements, elements);
          const Values scales = part(2 * elements, scale.size());
          const Values shifts = part(2 * elements + scale.size(), shift.size());
          const PlannedMemory x_memory(layout, xs), residual_memory(layout, residuals), y(layout);
          const GuardedMemory scale_memory(scales), shift_memory(shifts);
          const GuardedMemory mean(Values(scale.size(), 0.0f)), variance(Values(scale.size(), 1.0f));
          kernel->forward_training(stream_, {.x = x_memory.data(),
                                             .residual = residual ? residual_memory.data() : nullptr,
                                             .parameters = {scale_memory.floats(), shift_memory.floats()},
                                             .running = {mean.floats(), variance.floats()},
                                             .y = y.data(),
                                             .saved = saved.data(),
                                             .scratch = scratch.data()});
          SCOPED_TRACE(fmt::format("{} at {}", poison, at));
          const Values actual = y.plain();
          expect_not_finite_where(reference.training(widen(xs), widen(scales), widen(shifts),
                                                     residual ? widen(residuals) : Doubles()),
                                  actual);
          const auto positions = elements / (2 * scale.size());  // of an image and channel
          const auto channel_of = [&](std::size_t i) { return i / positions % scale.size(); };
          const std::size_t poisoned_channel =
              at < 2 * elements ? channel_of(at % elements) : (at - 2 * elements) % scale.size();
          for (std::size_t i = 0; i < elements; ++i) {
            if (channel_of(i) == poisoned_channel) continue;
            ASSERT_TRUE(std::isfinite(actual[i])) << "element " << i;
          }
          if (HasFatalFailure()) return;
        });
      }
    }
  }
}

TEST_P(Poison, SpreadsThroughConvolutionsAndTheirActivation) {
  const std::vector<Layout> inputs = layouts_for({2, 16, 4, 4}, type_);
  for (const Activation activation : {Activation::none, Activation::relu, Activation::relu6}) {
    for (const char* candidate : {"direct", "winograd", "winograd in 2 pieces", "tiled winograd",
                                  "direct in 2 pieces", "direct bf16"}) {
      const ConvolutionShape s{.batch = 2,
                               .in_channels = 16,
                               .in_height = 4,
                               .in_width = 4,
                               .out_channels = 16,
                               .kernel = 3,
                               .padding = 1,
                               .bias = true,
                               .activation = activation};
      // oneDNN computes each product of plain pieces separately, which is slow.
      const bool in_pieces = std::string_view(candidate).ends_with("pieces");
      const auto kernel = convolution_by(candidate, s, in_pieces ? inputs.back() : inputs.front());
      if (!kernel) continue;
      SCOPED_TRACE(fmt::format("{}, activation {}", candidate, static_cast<int>(activation)));
      expect_affine_poison(*kernel, s);
    }
  }
}

TEST_P(Poison, SpreadsThroughLinearLayersAndTheirActivation) {
  for (const Activation activation : {Activation::none, Activation::relu, Activation::relu6}) {
    for (const char* candidate : {"inner product", "inner product bf16"}) {
      const LinearShape s{.batch = 3, .in_features = 9, .out_features = 17, .activation = activation};
      const auto kernel = linear_by(candidate, s, Layout({3, 9}, type_));
      if (!kernel) continue;
      SCOPED_TRACE(fmt::format("{}, activation {}", candidate, static_cast<int>(activation)));
      expect_affine_poison(*kernel, as_convolution(s));
    }
  }
}

// The maximum of a window is its largest value, where NaN is larger than all. The poisoned element gets the
// gradients of exactly those windows whose maximum it is.
TEST_P(Poison, SpreadsThroughPooling) {
  std::vector<PoolingOptions> windows = {{.kernel = 2, .stride = 2},
                                         {.kernel = 3, .stride = 2, .padding = 1},
                                         {.kernel = 1, .stride = 1},
                                         {.global = true}};
  for (std::size_t i = 0; i < 4; ++i) {
    windows.push_back(windows[i]);
    windows.back().kind = PoolingKind::average;
  }
  for (const PoolingOptions& options : windows) {
    for (const Layout& layout : layouts_for({2, 17, 4, 5}, type_)) {
      SCOPED_TRACE(
          fmt::format("{}, kernel {}, global {}", layout.describe(), options.kernel, options.global));
      const auto kernel = cpu_backend().pooling(options, layout);
      const Shape out = kernel->output().shape();
      const Values x = rounded(random_values(layout.shape().elements(), "x"), type_);
      for_each_poison(
          x,
          [&](const Values& poisoned, std::size_t at, float poison) {
            const Doubles expected = pooled(options, layout.shape(), poisoned);
            const PlannedMemory input(layout, poisoned), output(kernel->output()), x_gradient(layout);
            const PlannedMemory ones(kernel->output(),
                                     Values(static_cast<std::size_t>(out.elements()), 1.0f));
            const GuardedMemory saved(kernel->saved_bytes()), scratch(kernel->scratch_bytes());
            SCOPED_TRACE(fmt::format("{} at {}", poison, at));
            kernel->forward(stream_, input.data(), output.data(), nullptr, scratch.data());
            expect_not_finite_where(expected, output.plain());
            kernel->forward(stream_, input.data(), output.data(), saved.data(), scratch.data());
            const Values y = output.plain();
            expect_not_finite_where(expected, y);
            EXPECT_TRUE(output.padding_is_zero() && output.margin_intact() && saved.margin_intact());
            for (std::size_t i = 0; i < y.size(); ++i)
              ASSERT_EQ(std::isfinite(y[i]), std::isfinite(expected[i])) << "at " << i;
            if (options.kind == PoolingKind::average) return;
            for (std::size_t i = 0; i < y.size(); ++i)
              ASSERT_TRUE(same_number(y[i], static_cast<float>(expected[i]))) << "at " << i;
            kernel->backward(stream_, ones.data(), saved.data(), x_gradient.data(), scratch.data());
            const Values gradient = x_gradient.plain();
            double sum = 0;
            for (const float value : gradient) sum += static_cast<double>(value);
            EXPECT_EQ(sum, static_cast<double>(out.elements()));
            const auto chosen = std::ranges::count_if(y, [](float value) { return !std::isfinite(value); });
            EXPECT_EQ(gradient[at], static_cast<float>(chosen));
          },
          11);
    }
  }
}

}  // namespace
}  // namespace lockstep
