// SPDX-License-Identifier: Apache-2.0
#include "kernels/batch_norm.h"

#include <cmath>
#include <iterator>

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/kernels/batch_norm_reference.h"
#include "tests/kernels/planned_memory.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

Values around(float center, const Values& values) {
  Values moved = values;
  for (float& value : moved) value += center;
  return moved;
}

// A planned kernel with its tensors.
struct BatchNormCase {
  BatchNormOptions options;
  std::unique_ptr<BatchNormKernel> kernel;
  BatchNormReference reference;
  Values x, residual, scale, shift, y_gradient;
  PlannedMemory x_memory, residual_memory, residual_gradient, y_memory;
  GuardedMemory scale_memory, shift_memory, mean_memory, variance_memory, saved, scratch;
  Stream stream{Device{}, StreamUse::compute};

  BatchNormCase(const Layout& layout, const BatchNormOptions& o, float center = 0.25f)
      : options(o),
        kernel(cpu_backend().batch_norm(o, layout)),
        reference(layout.shape(), o),
        x(rounded(around(center, random_values(layout.shape().elements(), "input")), layout.dtype())),
        residual(o.residual ? rounded(random_values(layout.shape().elements(), "residual"), layout.dtype())
                            : Values()),
        scale(random_values(layout.shape()[1], "scale")),
        shift(random_values(layout.shape()[1], "shift")),
        y_gradient(rounded(random_values(layout.shape().elements(), "output gradient"), layout.dtype())),
        x_memory(layout, x),
        residual_memory(layout, o.residual ? residual : x),
        residual_gradient(layout),
        y_memory(layout),
        scale_memory(scale),
        shift_memory(shift),
        mean_memory(Values(scale.size(), 0.0f)),
        variance_memory(Values(scale.size(), 1.0f)),
        saved(kernel->saved_bytes()),
        scratch(kernel->scratch_bytes()) {}

  BatchNormParameters parameters() const { return {scale_memory.floats(), shift_memory.floats()}; }
  BatchNormStatistics running() const { return {mean_memory.floats(), variance_memory.floats()}; }

  BatchNormForward forward_arguments() {
    y_memory.spoil();
    scratch.spoil();
    return {.x = x_memory.data(),
            .residual = options.residual ? residual_memory.data() : nullptr,
            .parameters = parameters(),
            .running = running(),
            .y = y_memory.data(),
            .saved = saved.data(),
            .scratch = scratch.data()};
  }
  void forward_training() { kernel->forward_training(stream, forward_arguments()); }
  void forward_evaluation() { kernel->forward_evaluation(stream, forward_arguments()); }
  void backward(const PlannedMemory& given, PlannedMemory& x_gradient, GuardedMemory& scale_gradient,
                GuardedMemory& shift_gradient, Write write) {
    scratch.spoil();
    if (&given != &residual_gradient) residual_gradient.spoil();
    kernel->backward(stream, {.x = x_memory.data(),
                              .y_gradient = given.data(),
                              .parameters = parameters(),
                              .saved = saved.data(),
                              .x_gradient = x_gradient.data(),
                              .residual_gradient = options.residual ? residual_gradient.data() : nullptr,
                              .scale_gradient = scale_gradient.floats(),
                              .shift_gradient = shift_gradient.floats(),
                              .write = write,
                              .scratch = scratch.data()});
  }
  Doubles expected() const {
    return reference.training(widen(x), widen(scale), widen(shift), widen(residual));
  }
  double loss(const Doubles& at_x, const Doubles& at_scale, const Doubles& at_shift,
              const Doubles& at_residual) const {
    return dot(widen(y_gradient), reference.training(at_x, at_scale, at_shift, at_residual));
  }
  bool margins_intact() const {
    return x_memory.margin_intact() && y_memory.margin_intact() && scale_memory.margin_intact() &&
           shift_memory.margin_intact() && mean_memory.margin_intact() && variance_memory.margin_intact() &&
           saved.margin_intact() && scratch.margin_intact() && residual_memory.margin_intact() &&
           residual_gradient.margin_intact();
  }
};

template <typename Test>
void for_each_batch_norm(Test test) {
  std::vector<Layout> layouts;
  for (const std::int64_t channels : {1, 3, 16, 17, 40}) {
    for (const std::int64_t batch : {1, 2, 5}) {
      for (const auto& [height, width] : {std::pair{1, 1}, {7, 7}, {8, 8}, {1, 7}}) {
        for (const DType type : kTypes) {
          if (type != DType::f32 && (batch == 1 || width == 8)) continue;
          std::ranges::copy(layouts_for({batch, channels, height, width}, type), std::back_inserter(layouts));
        }
      }
    }
  }
  Thinning thinning;
  for (const Layout& layout : layouts) {
    for (const Activation activation : {Activation::none, Activation::relu, Activation::relu6}) {
      for (const bool residual : {false, true}) {
        if (!thinning.takes()) continue;
        SCOPED_TRACE(fmt::format("{}, activation {}, residual {}", layout.describe(),
                                 static_cast<int>(activation), residual));
        test(layout, BatchNormOptions{.activation = activation, .residual = residual});
      }
    }
  }
}

// Elements of the type: allows its rounding in addition.
void expect_all_near(const Values& actual, const Doubles& expected, double tolerance,
                     DType type = DType::f32) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    ASSERT_NEAR(actual[i], expected[i], tolerance + roundoff(type) * std::abs(expected[i])) << "at " << i;
}

// The largest factor by which errors of y's gradient grow into errors of x's.
double largest_factor(const BatchNormCase& c) {
  double largest = 1;
  const Doubles x = widen(c.x);
  for (std::int64_t k = 0; k < c.reference.channels; ++k) {
    const double deviation = std::sqrt(c.reference.variance(x, k) + c.options.epsilon);
    largest = std::max(largest, std::abs(c.scale[k]) / deviation);
  }
  return largest;
}

TEST(BatchNorm, TrainingMatchesTheDefinition) {
  for_each_batch_norm([](const Layout& layout, const BatchNormOptions& options) {
    BatchNormCase c(layout, options);
    EXPECT_EQ(c.kernel->layout(), layout);
    const Doubles expected = c.expected();
    // Twice into the same memory: every call must zero the padding, not only the first one.
    for (int call = 0; call < 2; ++call) {
      c.forward_training();
      expect_all_near(c.y_memory.plain(), expected, 1e-6 * largest_factor(c) + 1e-6, layout.dtype());
      EXPECT_TRUE(c.y_memory.padding_is_zero());
    }
    EXPECT_EQ(c.x_memory.plain(), c.x);
    EXPECT_TRUE(c.margins_intact());
  });
}

TEST(BatchNorm, VarianceIsAccurateForMeansFarFromZero) {
  for (const Layout& layout : layouts_for({5, 17, 8, 8})) {
    SCOPED_TRACE(layout.describe());
    BatchNormCase c(layout, {}, 1000.0f);
    c.forward_training();
    expect_all_near(c.y_memory.plain(), c.expected(), 2e-3);
  }
}

TEST(BatchNorm, GradientsMatchFiniteDifferences) {
  for_each_batch_norm([](const Layout& layout, const BatchNormOptions& options) {
    BatchNormCase c(layout, options);
    c.forward_training();
    const PlannedMemory given(layout, c.y_gradient);
    PlannedMemory x_gradient(layout);
    GuardedMemory scale_gradient(c.scale.size() * sizeof(float));
    GuardedMemory shift_gradient(c.scale.size() * sizeof(float));
    c.backward(given, x_gradient, scale_gradient, shift_gradient, Write::overwrite);
    x_gradient.spoil();
    c.backward(given, x_gradient, scale_gradient, shift_gradient, Write::overwrite);
    EXPECT_TRUE(x_gradient.padding_is_zero());
    EXPECT_TRUE(c.margins_intact() && x_gradient.margin_intact() && scale_gradient.margin_intact() &&
                shift_gradient.margin_intact());

    const Doubles x = widen(c.x), scale = widen(c.scale), shift = widen(c.shift),
                  residual = widen(c.residual);
    const auto by_x = [&](const Doubles& at) { return c.loss(at, scale, shift, residual); };
    const auto by_scale = [&](const Doubles& at) { return c.loss(x, at, shift, residual); };
    const auto by_shift = [&](const Doubles& at) { return c.loss(x, scale, at, residual); };
    const auto by_residual = [&](const Doubles& at) { return c.loss(x, scale, shift, at); };
    const double tolerance = 1e-5 * largest_factor(c);
    const auto expect_slope = [&](const Values& gradient, const Doubles& at, auto loss, const char* what) {
      const Doubles direction = widen(random_values(static_cast<std::int64_t>(at.size()), what));
      const double size = std::sqrt(dot(direction, direction));
      const double given_size = std::sqrt(dot(widen(c.y_gradient), widen(c.y_gradient)));
      const double rounding = roundoff(layout.dtype());
      const double own_size = std::sqrt(dot(widen(gradient), widen(gradient)));
      EXPECT_NEAR(dot(widen(gradient), direction), slope(at, direction, loss),
                  (tolerance * given_size + rounding * own_size) * size)
          << what;
      for (std::size_t i = 0; i < at.size(); i += at.size() / 3 + 1) {
        EXPECT_NEAR(gradient[i], slope_at(at, i, loss), tolerance * 10 + rounding * std::abs(gradient[i]))
            << what << " at " << i;
      }
    };
    expect_slope(x_gradient.plain(), x, by_x, "input");
    expect_slope(scale_gradient.values(), scale, by_scale, "scale");
    expect_slope(shift_gradient.values(), shift, by_shift, "shift");
    if (!options.residual) return;
    EXPECT_TRUE(c.residual_gradient.padding_is_zero());
    expect_slope(c.residual_gradient.plain(), residual, by_residual, "residual");
  });
}

// The gradient of x, after multiplying x, the gradient of y and the scale by these factors.
Values x_gradient_of_multiples(const Layout& layout, float by_x, float by_y_gradient, float by_scale) {
  BatchNormCase c(layout, {});
  const auto multiplied = [](Values values, float factor) {
    for (float& value : values) value *= factor;
    return values;
  };
  std::memcpy(c.x_memory.data(), to_memory(multiplied(c.x, by_x), layout).data(), layout.bytes());
  std::ranges::copy(multiplied(c.scale, by_scale), c.scale_memory.floats());
  const PlannedMemory given(layout, multiplied(c.y_gradient, by_y_gradient));
  PlannedMemory x_gradient(layout);
  GuardedMemory scale_gradient(c.scale.size() * sizeof(float)),
      shift_gradient(c.scale.size() * sizeof(float));
  c.forward_training();
  c.backward(given, x_gradient, scale_gradient, shift_gradient, Write::overwrite);
  return x_gradient.plain();
}

// Epsilon is negligible, so powers of two scale the gradient exactly. In fp32 scale / deviation^3 * mean(g *
// (x - mean)) underflows here, but the gradient does not.
TEST(BatchNorm, RepresentableGradientsDoNotUnderflow) {
  for (const Layout& layout : layouts_for({3, 17, 5, 5})) {
    SCOPED_TRACE(layout.describe());
    const Values usual = x_gradient_of_multiples(layout, 0x1p20f, 1, 1);
    const Values small = x_gradient_of_multiples(layout, 0x1p40f, 0x1p-40f, 0x1p-30f);
    for (std::size_t i = 0; i < usual.size(); ++i)
      ASSERT_NEAR(small[i], std::ldexp(static_cast<double>(usual[i]), -90), 0x1p-135) << "at " << i;
  }
}

TEST(BatchNorm, GradientsThatTheActivationBlocksMayBeInfinite) {
  for (const bool residual : {false, true}) {
    for (const Layout& layout : layouts_for({3, 17, 5, 5})) {
      SCOPED_TRACE(fmt::format("{}, residual {}", layout.describe(), residual));
      BatchNormCase c(layout, {.activation = Activation::relu, .residual = residual});
      c.forward_training();
      const Values y = c.y_memory.plain();
      for (std::size_t i = 0; i < y.size(); ++i) c.y_gradient[i] = y[i] == 0 ? HUGE_VALF : 1.0f;
      const PlannedMemory given(layout, c.y_gradient);
      PlannedMemory x_gradient(layout);
      GuardedMemory scale_gradient(c.scale.size() * sizeof(float)),
          shift_gradient(c.scale.size() * sizeof(float));
      c.backward(given, x_gradient, scale_gradient, shift_gradient, Write::overwrite);
      for (const Values& gradient : {x_gradient.plain(), scale_gradient.values(), shift_gradient.values()})
        for (const float value : gradient) ASSERT_TRUE(std::isfinite(value));
    }
  }
}

TEST(BatchNorm, AccumulatesAndOverwritesInPlace) {
  for_each_batch_norm([](const Layout& layout, const BatchNormOptions& options) {
    BatchNormCase c(layout, options);
    c.forward_training();
    const PlannedMemory given(layout, c.y_gradient);
    PlannedMemory x_gradient(layout);
    GuardedMemory scale_gradient(c.scale.size() * sizeof(float));
    GuardedMemory shift_gradient(c.scale.size() * sizeof(float));
    c.backward(given, x_gradient, scale_gradient, shift_gradient, Write::overwrite);

    const Values before = random_values(static_cast<std::int64_t>(c.scale.size()), "gradient before");
    GuardedMemory scale_sum(before), shift_sum(before);
    PlannedMemory in_place(layout, c.y_gradient);
    if (options.residual) {
      const Values residual_gradient = c.residual_gradient.values();
      std::swap(c.residual_gradient, in_place);
      PlannedMemory again(layout);
      c.backward(c.residual_gradient, again, scale_sum, shift_sum, Write::accumulate);
      EXPECT_EQ(c.residual_gradient.values(), residual_gradient);
      std::swap(again, in_place);
    } else {
      c.backward(in_place, in_place, scale_sum, shift_sum, Write::accumulate);
    }
    // The compiler may change the order of sums when memory overlaps.
    expect_all_near(in_place.plain(), widen(x_gradient.plain()), 1e-5 + roundoff(layout.dtype()) * 1e-2,
                    layout.dtype());
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_NEAR(scale_sum.floats()[i], before[i] + scale_gradient.floats()[i], 1e-4);
      EXPECT_NEAR(shift_sum.floats()[i], before[i] + shift_gradient.floats()[i], 1e-4);
    }
    EXPECT_TRUE(c.margins_intact() && in_place.margin_intact() && scale_sum.margin_intact() &&
                shift_sum.margin_intact());
  });
}

TEST(BatchNorm, RunningStatisticsTakeTheUnbiasedVariance) {
  for_each_batch_norm([](const Layout& layout, const BatchNormOptions& options) {
    BatchNormCase c(layout, options);
    Doubles means(c.scale.size(), 0.0), variances(c.scale.size(), 1.0);
    for (int step = 0; step < 4; ++step) {
      c.x = rounded(around(0.5f * static_cast<float>(step),
                           random_values(layout.shape().elements(), "step " + std::to_string(step))),
                    layout.dtype());
      std::memcpy(c.x_memory.data(), to_memory(c.x, layout).data(), layout.bytes());
      c.forward_training();
      const auto n = static_cast<double>(c.reference.samples());
      const Doubles x = widen(c.x);
      for (std::int64_t k = 0; k < c.reference.channels; ++k) {
        const double variance = c.reference.variance(x, k) * (n > 1 ? n / (n - 1) : 1);
        means[k] = 0.9 * means[k] + 0.1 * c.reference.mean(x, k);
        variances[k] = 0.9 * variances[k] + 0.1 * variance;
      }
    }
    expect_all_near(c.mean_memory.values(), means, 1e-5);
    expect_all_near(c.variance_memory.values(), variances, 1e-5);
  });
}

TEST(BatchNorm, ARepeatedForwardKeepsTheRunningStatistics) {
  BatchNormCase c(Layout({4, 17, 5, 5}, DType::f32), {.activation = Activation::relu});
  c.forward_training();
  const Values mean = c.mean_memory.values(), variance = c.variance_memory.values(), y = c.y_memory.values();
  BatchNormForward again = c.forward_arguments();
  again.update_running = false;
  c.kernel->forward_training(c.stream, again);
  EXPECT_EQ(c.mean_memory.values(), mean);
  EXPECT_EQ(c.variance_memory.values(), variance);
  EXPECT_EQ(c.y_memory.values(), y);
}

TEST(BatchNorm, TheOutputMayOverwriteTheResidual) {
  for (const DType type : kTypes) {
    for (const Layout& layout : layouts_for({3, 17, 5, 6}, type)) {
      BatchNormCase c(layout, {.activation = Activation::relu, .residual = true});
      BatchNormForward arguments = c.forward_arguments();
      arguments.y = c.residual_memory.data();
      c.kernel->forward_training(c.stream, arguments);
      expect_all_near(c.residual_memory.plain(), c.expected(), 1e-6 * largest_factor(c) + 1e-6, type);
    }
  }
}

TEST(BatchNorm, EvaluationUsesTheRunningStatisticsAndKeepsThem) {
  for_each_batch_norm([](const Layout& layout, const BatchNormOptions& options) {
    BatchNormCase c(layout, options);
    const Values means = random_values(c.reference.channels, "running mean");
    const Values variances = around(1.5f, random_values(c.reference.channels, "running variance"));
    std::ranges::copy(means, c.mean_memory.floats());
    std::ranges::copy(variances, c.variance_memory.floats());
    const Doubles expected = c.reference.normalize(widen(c.x), widen(means), widen(variances), widen(c.scale),
                                                   widen(c.shift), widen(c.residual));
    for (int call = 0; call < 2; ++call) {
      c.forward_evaluation();
      expect_all_near(c.y_memory.plain(), expected, 3e-6, layout.dtype());
      EXPECT_TRUE(c.y_memory.padding_is_zero());
    }
    EXPECT_EQ(c.mean_memory.values(), means);
    EXPECT_EQ(c.variance_memory.values(), variances);
    EXPECT_TRUE(c.margins_intact());
  });
}

// y is linear in x, so x's gradient is the slope times y's gradient where the activation passes it.
TEST(BatchNorm, FrozenLayersUseTheRunningStatisticsAndPropagateGradients) {
  for_each_batch_norm([](const Layout& layout, BatchNormOptions options) {
    options.frozen = true;
    BatchNormCase c(layout, options);
    const Values means = random_values(c.reference.channels, "running mean");
    const Values variances = around(1.5f, random_values(c.reference.channels, "running variance"));
    std::ranges::copy(means, c.mean_memory.floats());
    std::ranges::copy(variances, c.variance_memory.floats());
    c.forward_training();
    const auto normalized = [&](Activation activation) {
      BatchNormReference reference = c.reference;
      reference.options.activation = activation;
      return reference.normalize(widen(c.x), widen(means), widen(variances), widen(c.scale), widen(c.shift),
                                 widen(c.residual));
    };
    expect_all_near(c.y_memory.plain(), normalized(options.activation), 3e-6, layout.dtype());
    EXPECT_TRUE(c.y_memory.padding_is_zero());
    const PlannedMemory given(layout, c.y_gradient);
    PlannedMemory x_gradient(layout);
    GuardedMemory none(0);
    c.backward(given, x_gradient, none, none, Write::overwrite);

    const Doubles before = normalized(Activation::none);
    Doubles by_x(c.x.size()), by_residual(c.x.size());
    for (std::int64_t k = 0; k < c.reference.channels; ++k) {
      const double slope = c.scale[k] / std::sqrt(static_cast<double>(variances[k] + options.epsilon));
      c.reference.each(k, [&](std::size_t i) {
        const double highest = options.activation == Activation::relu6 ? 6 : HUGE_VAL;
        const bool passed = options.activation == Activation::none || (before[i] > 0 && before[i] < highest);
        by_residual[i] = passed ? static_cast<double>(c.y_gradient[i]) : 0;
        by_x[i] = slope * by_residual[i];
      });
    }
    expect_all_near(x_gradient.plain(), by_x, 3e-6, layout.dtype());
    EXPECT_TRUE(x_gradient.padding_is_zero());
    if (options.residual) expect_all_near(c.residual_gradient.plain(), by_residual, 0, layout.dtype());
    EXPECT_EQ(c.mean_memory.values(), means);
    EXPECT_EQ(c.variance_memory.values(), variances);
    EXPECT_TRUE(c.margins_intact());
  });
}

TEST(BatchNorm, FeaturesAreImagesOfOnePixel) {
  for (const std::int64_t channels : {1, 17, 64}) {
    for (const bool relu : {false, true}) {
      const Shape features{5, channels};
      BatchNormCase c(Layout(features, DType::f32),
                      {.activation = relu ? Activation::relu : Activation::none});
      BatchNormCase image(Layout({5, channels, 1, 1}, DType::f32),
                          {.activation = relu ? Activation::relu : Activation::none});
      EXPECT_EQ(c.kernel->layout().shape(), features);
      c.forward_training();
      image.forward_training();
      EXPECT_EQ(c.y_memory.plain(), image.y_memory.plain());
      EXPECT_EQ(c.mean_memory.values(), image.mean_memory.values());
      expect_all_near(c.y_memory.plain(), c.expected(), 1e-4);
    }
  }
}

TEST(BatchNorm, RejectsInvalidOptions) {
  const Layout image({2, 3, 4, 4}, DType::f32);
  EXPECT_THROW(cpu_backend().batch_norm({}, Layout({2, 3, 4}, DType::f32)), ConfigError);
  EXPECT_THROW(cpu_backend().batch_norm({}, Layout({2, 0, 4, 4}, DType::f32)), ConfigError);
  EXPECT_THROW(cpu_backend().batch_norm({.epsilon = 0}, image), ConfigError);
  EXPECT_THROW(cpu_backend().batch_norm({.momentum = 1.5f}, image), ConfigError);
}

}  // namespace
}  // namespace lockstep
