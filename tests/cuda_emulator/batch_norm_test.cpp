// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/batch_norm.h"

#include <gtest/gtest.h>

#include "tests/cuda_emulator/device_memory.h"
#include "tests/kernels/batch_norm_reference.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

// Converts [rows, channels] to [1, channels, rows], the layout of the reference, and back.
template <typename V>
V transposed(const V& from, std::int64_t rows, std::int64_t columns) {
  V to(from.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      to[static_cast<std::size_t>(c * rows + r)] = from[static_cast<std::size_t>(r * columns + c)];
    }
  }
  return to;
}

struct BatchNormGradients {
  Doubles x, residual, scale, shift;
};

struct BatchNormCase {
  CudaBatchNorm norm;
  Values x, residual, scale, shift, y_gradient;  // [rows, channels]

  BatchNormCase(DType type, std::int64_t rows, std::int64_t channels, const BatchNormOptions& options,
                float center = 0.25f)
      : norm{.type = type, .rows = rows, .channels = channels, .options = options},
        x(random_values(rows * channels, "x")),
        residual(rounded(random_values(options.residual ? rows * channels : 0, "residual"), type)),
        scale(random_values(channels, "scale")),
        shift(random_values(channels, "shift")),
        y_gradient(rounded(random_values(rows * channels, "y gradient"), type)) {
    for (float& value : x) value = rounded(value + center, type);
  }

  BatchNormReference reference() const {
    return BatchNormReference({1, norm.channels, norm.rows, 1}, norm.options);
  }
  Doubles by_channel(const Values& values) const {
    return values.empty() ? Doubles() : transposed(widen(values), norm.rows, norm.channels);
  }
  Doubles by_row(const Doubles& values) const { return transposed(values, norm.channels, norm.rows); }

  // y, [rows, channels]
  Doubles expected() const {
    return by_row(reference().training(by_channel(x), widen(scale), widen(shift), by_channel(residual)));
  }

  // From the definition: the mean and the variance depend on x, too.
  BatchNormGradients expected_gradients() const {
    const BatchNormReference r = reference();
    const Doubles xs = by_channel(x), ys = by_channel(y_gradient), added = by_channel(residual);
    BatchNormOptions linear = norm.options;
    linear.activation = Activation::none;
    const Doubles before = BatchNormReference({1, norm.channels, norm.rows, 1}, linear)
                               .training(xs, widen(scale), widen(shift), added);
    BatchNormGradients g{.x = Doubles(xs.size()), .residual = Doubles(xs.size()), .scale = {}, .shift = {}};
    const auto n = static_cast<double>(norm.rows);
    for (std::int64_t c = 0; c < norm.channels; ++c) {
      const double mean = r.mean(xs, c);
      const double inverse = 1 / std::sqrt(r.variance(xs, c) + static_cast<double>(norm.options.epsilon));
      double sum = 0, product = 0;
      r.each(c, [&](std::size_t i) {
        const bool passed = norm.options.activation == Activation::none ||
                            (before[i] > 0 && (norm.options.activation == Activation::relu || before[i] < 6));
        g.residual[i] = passed ? ys[i] : 0;
        sum += g.residual[i];
        product += g.residual[i] * (xs[i] - mean) * inverse;
      });
      g.scale.push_back(product);
      g.shift.push_back(sum);
      r.each(c, [&](std::size_t i) {
        const double normal = (xs[i] - mean) * inverse;
        g.x[i] = static_cast<double>(scale[static_cast<std::size_t>(c)]) * inverse *
                 (g.residual[i] - sum / n - normal * product / n);
      });
    }
    g.x = by_row(g.x);
    g.residual = by_row(g.residual);
    return g;
  }

  // The largest factor by which errors of y's gradient grow into errors of x's.
  double largest_factor() const {
    const BatchNormReference r = reference();
    const Doubles xs = by_channel(x);
    double largest = 1;
    for (std::int64_t c = 0; c < norm.channels; ++c) {
      const double deviation = std::sqrt(r.variance(xs, c) + static_cast<double>(norm.options.epsilon));
      largest =
          std::max(largest, std::abs(static_cast<double>(scale[static_cast<std::size_t>(c)])) / deviation);
    }
    return largest;
  }
};

// The kernels' memory of one case.
class BatchNormTensors {
 public:
  BatchNormTensors(const BatchNormCase& c, std::size_t misaligned, int device = 0)
      : case_(c),
        type_(c.norm.type),
        stream_({.kind = DeviceKind::cpu, .index = device}, StreamUse::compute),
        x_(c.x, type_, misaligned),
        residual_(c.residual, type_, misaligned),
        scale_(c.scale, DType::f32),
        shift_(c.shift, DType::f32),
        mean_(Values(c.scale.size(), 0.5f), DType::f32),
        variance_(Values(c.scale.size(), 2.0f), DType::f32),
        y_(c.x.size() * size_of(type_), misaligned),
        given_(c.y_gradient, type_, misaligned),
        x_gradient_(c.x.size() * size_of(type_)),
        scale_gradient_(Values(c.scale.size(), 1.0f), DType::f32),
        shift_gradient_(Values(c.scale.size(), 2.0f), DType::f32),
        saved_(c.norm.saved_bytes()),
        scratch_(c.norm.scratch_bytes()) {}

  BatchNormForward forward() {
    scratch_.spoil();
    return {.x = x_.data(),
            .residual = case_.norm.options.residual ? residual_.data() : nullptr,
            .parameters = {scale_.as<float>(), shift_.as<float>()},
            .running = {mean_.as<float>(), variance_.as<float>()},
            .y = y_.data(),
            .saved = saved_.data(),
            .scratch = scratch_.data()};
  }
  Values train() {
    cuda_batch_norm_forward_training(stream_, case_.norm, forward());
    return y_.values(type_);
  }
  // Writes y over the residual.
  Values train_in_place() {
    BatchNormForward f = forward();
    f.y = residual_.data();
    cuda_batch_norm_forward_training(stream_, case_.norm, f);
    return residual_.values(type_);
  }
  Values evaluate() {
    cuda_batch_norm_forward_evaluation(stream_, case_.norm, forward());
    return y_.values(type_);
  }
  void repeat_forward() {
    BatchNormForward f = forward();
    f.update_running = false;
    cuda_batch_norm_forward_training(stream_, case_.norm, f);
  }
  // Writes the residual's gradient over y's gradient, and adds to the gradients of the parameters.
  void backward() {
    scratch_.spoil();
    cuda_batch_norm_backward(stream_, case_.norm,
                             {.x = x_.data(),
                              .y_gradient = given_.data(),
                              .parameters = {scale_.as<float>(), shift_.as<float>()},
                              .saved = saved_.data(),
                              .x_gradient = x_gradient_.data(),
                              .residual_gradient = case_.norm.options.residual ? given_.data() : nullptr,
                              .scale_gradient = scale_gradient_.as<float>(),
                              .shift_gradient = shift_gradient_.as<float>(),
                              .write = Write::accumulate,
                              .scratch = scratch_.data()});
  }
  // All results of training and backward.
  Values all() {
    Values all = train();
    backward();
    for (const Values& part : {x_gradient(), residual_gradient(), scale_gradient(), shift_gradient()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }
  Values x_gradient() const { return x_gradient_.values(type_); }
  Values residual_gradient() const { return given_.values(type_); }
  Values scale_gradient() const { return scale_gradient_.values(DType::f32); }
  Values shift_gradient() const { return shift_gradient_.values(DType::f32); }
  Values running_mean() const { return mean_.values(DType::f32); }
  Values running_variance() const { return variance_.values(DType::f32); }

 private:
  const BatchNormCase& case_;
  DType type_;
  Stream stream_;
  DeviceMemory x_, residual_, scale_, shift_, mean_, variance_, y_, given_, x_gradient_, scale_gradient_,
      shift_gradient_, saved_, scratch_;
};

// Calls test(case, bytes of misalignment).
template <typename Test>
void for_each_batch_norm(Test test) {
  Thinning thinning;
  for (const DType type : kElementTypes) {
    for (const std::int64_t channels : {3, 8, 17, 72}) {
      for (const std::int64_t rows : {1, 2, 63, 500}) {
        for (const Activation activation : {Activation::none, Activation::relu, Activation::relu6}) {
          if (rows == 500 && activation != Activation::relu) continue;
          for (const bool residual : {false, true}) {
            if (!thinning.takes()) continue;
            const std::size_t misaligned = channels == 8 && rows == 63 ? size_of(type) : 0;
            SCOPED_TRACE(fmt::format("{} rows of {} channels in {}, activation {}, residual {}, {} bytes off",
                                     rows, channels, name_of(type), static_cast<int>(activation), residual,
                                     misaligned));
            test(BatchNormCase(type, rows, channels, {.activation = activation, .residual = residual}),
                 misaligned);
          }
        }
      }
    }
  }
}

TEST(CudaBatchNorm, TrainingMatchesTheDefinition) {
  for_each_batch_norm([](const BatchNormCase& c, std::size_t misaligned) {
    const double tolerance = 2e-6 * c.largest_factor() + 2e-6;
    const Doubles expected = c.expected();
    expect_near(in_any_order([&] { return BatchNormTensors(c, misaligned).train(); }), expected,
                2 * precision_of(c.norm.type), tolerance);
    if (!c.norm.options.residual) return;
    BatchNormTensors in_place(c, misaligned);
    expect_near(in_place.train_in_place(), expected, 2 * precision_of(c.norm.type), tolerance);
  });
}

TEST(CudaBatchNorm, GradientsMatchTheDefinition) {
  for_each_batch_norm([](const BatchNormCase& c, std::size_t misaligned) {
    const BatchNormGradients expected = c.expected_gradients();
    std::unique_ptr<BatchNormTensors> device;
    in_any_order([&] {
      device = std::make_unique<BatchNormTensors>(c, misaligned);
      return device->all();
    });
    const double relative = 2 * precision_of(c.norm.type);
    const double sums = 1e-6 * static_cast<double>(c.norm.rows) + 1e-5;
    expect_near(device->x_gradient(), expected.x, relative, 1e-5 * c.largest_factor());
    if (c.norm.options.residual) expect_near(device->residual_gradient(), expected.residual, 0, 0);
    Doubles scale = expected.scale, shift = expected.shift;
    for (double& value : scale) value += 1;  // the initial gradient
    for (double& value : shift) value += 2;
    expect_near(device->scale_gradient(), scale, 1e-6, sums);
    expect_near(device->shift_gradient(), shift, 1e-6, sums);
  });
}

// scale / deviation^3 * mean(g * (x - mean)) underflows in fp32 here; the gradient does not.
TEST(CudaBatchNorm, RepresentableGradientsDoNotUnderflow) {
  for (const std::int64_t channels : {5, 16}) {
    BatchNormCase c(DType::f32, 63, channels, {});
    for (float& x : c.x) x *= 0x1p40f;
    for (float& scale : c.scale) scale *= 0x1p-30f;
    for (float& gradient : c.y_gradient) gradient *= 0x1p-40f;
    BatchNormTensors device(c, 0);
    device.train();
    device.backward();
    expect_near(device.x_gradient(), c.expected_gradients().x, 1e-5, 1e-5 * 0x1p-110);
  }
}

TEST(CudaBatchNorm, EvaluationUsesTheRunningStatisticsOfTraining) {
  for (const DType type : kElementTypes) {
    for (const std::int64_t channels : {5, 16}) {
      const BatchNormCase c(type, 300, channels, {.activation = Activation::relu, .residual = true});
      BatchNormTensors device(c, 0);
      device.train();
      device.repeat_forward();
      const BatchNormReference r = c.reference();
      const Doubles xs = c.by_channel(c.x);
      Doubles mean, variance;
      for (std::int64_t i = 0; i < channels; ++i) {
        mean.push_back(0.9 * 0.5 + 0.1 * r.mean(xs, i));
        variance.push_back(0.9 * 2.0 + 0.1 * r.variance(xs, i) * 300 / 299);
      }
      expect_near(device.running_mean(), mean, 1e-6, 1e-6);
      expect_near(device.running_variance(), variance, 1e-6, 1e-6);
      const Doubles expected =
          c.by_row(r.normalize(xs, mean, variance, widen(c.scale), widen(c.shift), c.by_channel(c.residual)));
      expect_near(device.evaluate(), expected, 2 * precision_of(type), 1e-5);
      expect_near(device.running_mean(), mean, 1e-6, 1e-6);
    }
  }
}

TEST(CudaBatchNorm, VarianceIsAccurateForMeansFarFromZero) {
  for (const std::int64_t channels : {5, 16}) {
    const BatchNormCase c(DType::f32, 2000, channels, {}, 1000.0f);
    BatchNormTensors device(c, 0);
    expect_near(device.train(), c.expected(), 0, 2e-3);
  }
}

// The kernel must not use the first row as an estimate of the mean.
TEST(CudaBatchNorm, VarianceIsAccurateIfTheFirstRowIsFarFromTheOthers) {
  for (const std::int64_t channels : {5, 16}) {
    BatchNormCase c(DType::f32, 4000, channels, {});
    for (std::int64_t i = 0; i < channels; ++i) c.x[static_cast<std::size_t>(i)] = 1e4f;
    BatchNormTensors device(c, 0);
    expect_near(device.train(), c.expected(), 1e-5, 1e-4);
  }
}

// In inline_runtime.h, a device's index is its number of multiprocessors.
TEST(CudaBatchNorm, HasTheSameBitsForAnyNumberOfMultiprocessors) {
  EXPECT_EQ(enough_blocks({.index = 1}), 16);
  EXPECT_EQ(enough_blocks({.index = 132}), 2112);
  for (const std::int64_t channels : {5, 16}) {
    const BatchNormCase c(DType::f32, 4000, channels, {.activation = Activation::relu, .residual = true});
    EXPECT_EQ(BatchNormTensors(c, 0, 1).all(), BatchNormTensors(c, 0, 132).all()) << channels << " channels";
  }
}

// y is linear in x, so x's gradient is the slope times y's gradient where the activation passes it.
TEST(CudaBatchNorm, FrozenLayersKeepTheRunningStatisticsAndPropagateGradients) {
  for_each_batch_norm([](BatchNormCase c, std::size_t misaligned) {
    c.norm.options.frozen = true;
    const BatchNormReference r = c.reference();
    const Doubles mean(c.scale.size(), 0.5), variance(c.scale.size(), 2.0);  // initial values of the tensors
    const auto normalized = [&](Activation activation) {
      BatchNormReference by = r;
      by.options.activation = activation;
      return c.by_row(by.normalize(c.by_channel(c.x), mean, variance, widen(c.scale), widen(c.shift),
                                   c.by_channel(c.residual)));
    };
    std::unique_ptr<BatchNormTensors> device;
    in_any_order([&] {
      device = std::make_unique<BatchNormTensors>(c, misaligned);
      return device->all();
    });
    const double relative = 2 * precision_of(c.norm.type);
    expect_near(BatchNormTensors(c, misaligned).train(), normalized(c.norm.options.activation), relative,
                1e-5);
    const Doubles before = normalized(Activation::none);
    Doubles by_x(c.x.size()), by_residual(c.x.size());
    for (std::size_t i = 0; i < by_x.size(); ++i) {
      const double highest = c.norm.options.activation == Activation::relu6 ? 6 : HUGE_VAL;
      const bool passed =
          c.norm.options.activation == Activation::none || (before[i] > 0 && before[i] < highest);
      by_residual[i] = passed ? static_cast<double>(c.y_gradient[i]) : 0;
      const float scale = c.scale[i % c.scale.size()];
      by_x[i] = static_cast<double>(scale) / std::sqrt(2.0 + 1e-5) * by_residual[i];
    }
    expect_near(device->x_gradient(), by_x, relative, 1e-5);
    if (c.norm.options.residual) expect_near(device->residual_gradient(), by_residual, 0, 0);
    EXPECT_EQ(device->running_mean(), Values(c.scale.size(), 0.5f));
    EXPECT_EQ(device->running_variance(), Values(c.scale.size(), 2.0f));
    EXPECT_EQ(device->scale_gradient(), Values(c.scale.size(), 1.0f))
        << "gradients of frozen parameters must not change";
    EXPECT_EQ(device->shift_gradient(), Values(c.scale.size(), 2.0f));
  });
}

TEST(CudaBatchNorm, NoRowsLaunchNoKernel) {
  const BatchNormCase c(DType::f32, 0, 4, {});
  BatchNormTensors device(c, 0);
  EXPECT_TRUE(device.train().empty());
  device.backward();
}

}  // namespace
}  // namespace lockstep
