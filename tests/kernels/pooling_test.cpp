// SPDX-License-Identifier: Apache-2.0
#include "kernels/pooling.h"

#include <cmath>
#include <iterator>

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/kernels/planned_memory.h"
#include "tests/kernels/poison.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

std::string describe(const PoolingOptions& o) {
  return fmt::format("{} {}", o.kind == PoolingKind::max ? "max" : "average",
                     o.global ? "global" : fmt::format("{}/{}/{}", o.kernel, o.stride, o.padding));
}

template <typename Test>
void for_each_pooling(Test test) {
  std::vector<PoolingOptions> windows;
  for (const PoolingKind kind : {PoolingKind::max, PoolingKind::average}) {
    windows.push_back({.kind = kind, .kernel = 2, .stride = 2});
    windows.push_back({.kind = kind, .kernel = 3, .stride = 2, .padding = 1});
    windows.push_back({.kind = kind, .kernel = 3, .stride = 1, .padding = 1});
    windows.push_back({.kind = kind, .kernel = 2, .stride = 1, .padding = 1});
    windows.push_back({.kind = kind, .kernel = 1, .stride = 2});
    windows.push_back({.kind = kind, .kernel = 2, .stride = 3, .padding = 1});  // pixels between windows
    windows.push_back({.kind = kind, .global = true});
  }
  std::vector<Layout> layouts;
  for (const std::int64_t channels : {1, 3, 16, 17, 40}) {
    for (const std::int64_t batch : {1, 5}) {
      for (const auto& [height, width] : {std::pair{1, 1}, {7, 7}, {8, 8}, {7, 8}}) {
        for (const DType type : kTypes) {
          if (type != DType::f32 && (batch == 1 || height == 8)) continue;
          std::ranges::copy(layouts_for({batch, channels, height, width}, type), std::back_inserter(layouts));
        }
      }
    }
  }
  // A global window of more places than a byte counts.
  std::ranges::copy(layouts_for({1, 17, 16, 17}), std::back_inserter(layouts));
  Thinning thinning;
  for (const Layout& layout : layouts) {
    for (const PoolingOptions& options : windows) {
      if (!thinning.takes()) continue;
      if (!options.global && layout.shape()[2] + 2 * options.padding < options.kernel) continue;
      SCOPED_TRACE(layout.describe() + " " + describe(options));
      test(layout, options);
    }
  }
}

TEST(Pooling, ForwardMatchesTheDefinition) {
  for_each_pooling([](const Layout& layout, const PoolingOptions& options) {
    const Shape& in = layout.shape();
    const auto kernel = cpu_backend().pooling(options, layout);
    EXPECT_EQ(kernel->input(), layout);
    EXPECT_EQ(kernel->output().shape(),
              (Shape{in[0], in[1], options.out_size(in[2]), options.out_size(in[3])}));
    if (options.kind == PoolingKind::average) {
      EXPECT_EQ(kernel->saved_bytes(), 0u);
    }

    EXPECT_EQ(kernel->output().dtype(), layout.dtype());
    const Values x = rounded(random_values(in.elements(), "input"), layout.dtype());
    const Doubles expected = pooled(options, in, widen(x));
    const PlannedMemory input(layout, x);
    PlannedMemory output(kernel->output());
    const GuardedMemory saved(kernel->saved_bytes());
    GuardedMemory scratch(kernel->scratch_bytes());
    Stream stream(Device{}, StreamUse::compute);
    // With saved memory, as in training, and without, as in evaluation; each twice into the same memory.
    for (void* kept :
         {saved.data(), saved.data(), static_cast<void*>(nullptr), static_cast<void*>(nullptr)}) {
      output.spoil();
      scratch.spoil();
      kernel->forward(stream, input.data(), output.data(), kept, scratch.data());
      const Values y = output.plain();
      ASSERT_EQ(y.size(), expected.size());
      const double rounding = options.kind == PoolingKind::max ? 0 : roundoff(layout.dtype());
      for (std::size_t i = 0; i < y.size(); ++i)
        ASSERT_NEAR(y[i], expected[i], 1e-6 + rounding * std::abs(expected[i])) << "at " << i;
      EXPECT_TRUE(output.padding_is_zero());
    }
    EXPECT_EQ(input.plain(), x);
    EXPECT_TRUE(input.margin_intact() && output.margin_intact() && saved.margin_intact() &&
                scratch.margin_intact());
  });
}

TEST(Pooling, GradientsMatchFiniteDifferences) {
  for_each_pooling([](const Layout& layout, const PoolingOptions& options) {
    const auto kernel = cpu_backend().pooling(options, layout);
    const DType type = layout.dtype();
    Values x = rounded(random_values(layout.shape().elements(), "input"), type);
    // 16-bit values repeat, and any of equal values may be chosen as the maximum: use distinct ones.
    if (type != DType::f32) {
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 37 % 101) - 50;
    }
    const Values y_gradient =
        rounded(random_values(kernel->output().shape().elements(), "output gradient"), type);
    const PlannedMemory input(layout, x), given(kernel->output(), y_gradient);
    PlannedMemory output(kernel->output()), x_gradient(layout);
    const GuardedMemory saved(kernel->saved_bytes());
    GuardedMemory scratch(kernel->scratch_bytes());
    Stream stream(Device{}, StreamUse::compute);
    kernel->forward(stream, input.data(), output.data(), saved.data(), scratch.data());
    for (int call = 0; call < 2; ++call) {
      x_gradient.spoil();
      scratch.spoil();
      kernel->backward(stream, given.data(), saved.data(), x_gradient.data(), scratch.data());
    }
    EXPECT_TRUE(x_gradient.padding_is_zero());
    EXPECT_TRUE(x_gradient.margin_intact() && given.margin_intact() && saved.margin_intact() &&
                scratch.margin_intact());

    const Doubles weights = widen(y_gradient);
    const auto loss = [&](const Doubles& at) { return dot(weights, pooled(options, layout.shape(), at)); };
    const Values gradient = x_gradient.plain();
    const Doubles direction = widen(random_values(layout.shape().elements(), "direction"));
    const double size = std::sqrt(dot(direction, direction));
    const double rounding = roundoff(type) * std::sqrt(dot(widen(gradient), widen(gradient)));
    EXPECT_NEAR(dot(widen(gradient), direction), slope(widen(x), direction, loss), (1e-5 + rounding) * size);
    for (std::size_t i = 0; i < x.size(); i += x.size() / 5 + 1) {
      EXPECT_NEAR(gradient[i], slope_at(widen(x), i, loss), 1e-5 + roundoff(type) * std::abs(gradient[i]))
          << "at " << i;
    }
  });
}

TEST(Pooling, MaximumNeedsTheMemorySavedByForward) {
  const auto kernel = cpu_backend().pooling({}, Layout({1, 16, 4, 4}, DType::f32));
  const GuardedMemory gradient(16 * 2 * 2 * sizeof(float)), result(16 * 4 * 4 * sizeof(float)),
      scratch(kernel->scratch_bytes());
  Stream stream(Device{}, StreamUse::compute);
  EXPECT_THROW(kernel->backward(stream, gradient.data(), nullptr, result.data(), scratch.data()), Error);
}

TEST(Pooling, RejectsInvalidWindows) {
  const Layout image({2, 3, 4, 5}, DType::f32);
  EXPECT_THROW(cpu_backend().pooling({}, Layout({2, 3}, DType::f32)), ConfigError);
  EXPECT_THROW(cpu_backend().pooling({.global = true}, Layout({2, 3, 0, 5}, DType::f32)), ConfigError);
  EXPECT_THROW(cpu_backend().pooling({.kernel = 0}, image), ConfigError);
  EXPECT_THROW(cpu_backend().pooling({.stride = 0}, image), ConfigError);
  EXPECT_THROW(cpu_backend().pooling({.kernel = 2, .padding = 2}, image), ConfigError);
  EXPECT_THROW(cpu_backend().pooling({.kernel = 5, .stride = 1}, image), ConfigError);
  EXPECT_NO_THROW(cpu_backend().pooling({.kernel = 4, .stride = 1}, image));
}

}  // namespace
}  // namespace lockstep
