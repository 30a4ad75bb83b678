// SPDX-License-Identifier: Apache-2.0
//
// Planned kernels in every layout an input can come in: the result is that of plain tensors on the CPU.
#include "kernels/cuda/kernels.h"

#include <gtest/gtest.h>

#include "kernels/cuda/layout.h"
#include "tests/cuda_emulator/device_memory.h"
#include "tests/kernels/typed_tensor.h"

namespace lockstep {
namespace {

class CudaKernels : public testing::Test {
 protected:
  static std::vector<Layout> layouts_of(const Shape& shape, DType type) {
    std::vector<Layout> layouts = {Layout(shape, type)};
    for (const std::int64_t physical : {shape[1], shape[1] + 3}) {
      layouts.push_back(channels_last_layout(shape, type,
                                             {.outer = shape[0],
                                              .channels = shape[1],
                                              .pixels = shape.elements() / shape[0] / shape[1],
                                              .physical_channels = physical}));
    }
    return layouts;
  }

  Stream stream_{Device{}, StreamUse::compute};
  Backend& cpu_ = backend_for(Device{});
  Lab cpu_lab_{stream_, [this](const Layout& from, const Layout& to) { return cpu_.reorder(from, to); }};
  Lab lab_{stream_, make_cuda_reorder};
};

TypedTensor memory(const Lab& lab, std::size_t bytes) {
  return TypedTensor(lab, Layout({static_cast<std::int64_t>(bytes / sizeof(float)) + 1}, DType::f32));
}

// Everything training, backward and evaluation leave behind, plain.
std::vector<Values> run_batch_norm(const Lab& lab, BatchNormKernel& kernel, const BatchNormOptions& options) {
  const Shape& shape = kernel.layout().shape();
  const auto tensor = [&](std::string_view purpose) {
    return TypedTensor(lab, kernel.layout(), as_type(random_values(shape.elements(), purpose), DType::bf16));
  };
  const auto channel = [&](std::string_view purpose) {
    Values values = random_values(shape[1], purpose);
    for (float& value : values) value += 2;
    return TypedTensor(lab, DType::f32, values);
  };
  const TypedTensor x = tensor("x"), residual = tensor("residual"), y_gradient = tensor("y gradient"),
                    y(lab, kernel.layout()), evaluated(lab, kernel.layout()),
                    x_gradient(lab, kernel.layout()), scale = channel("scale"), shift = channel("shift"),
                    mean = channel("mean"), variance = channel("variance"),
                    scale_gradient = channel("scale gradient"), shift_gradient = channel("shift gradient"),
                    saved = memory(lab, kernel.saved_bytes());
  TypedTensor scratch = memory(lab, kernel.scratch_bytes());
  BatchNormForward forward{.x = x.data(),
                           .residual = options.residual ? residual.data() : nullptr,
                           .parameters = {scale.floats(), shift.floats()},
                           .running = {mean.floats(), variance.floats()},
                           .y = y.data(),
                           .saved = saved.data(),
                           .scratch = scratch.data()};
  kernel.forward_training(lab.stream, forward);
  scratch.poison();
  // The residual's gradient takes the place of y's.
  kernel.backward(lab.stream, {.x = x.data(),
                               .y_gradient = y_gradient.data(),
                               .parameters = {scale.floats(), shift.floats()},
                               .saved = saved.data(),
                               .x_gradient = x_gradient.data(),
                               .residual_gradient = options.residual ? y_gradient.data() : nullptr,
                               .scale_gradient = scale_gradient.floats(),
                               .shift_gradient = shift_gradient.floats(),
                               .write = Write::accumulate,
                               .scratch = scratch.data()});
  scratch.poison();
  forward.y = evaluated.data();
  kernel.forward_evaluation(lab.stream, forward);
  for (const TypedTensor* written : {&y, &evaluated, &x_gradient}) EXPECT_TRUE(written->padding_is_zero());
  return {y.plain(),
          evaluated.plain(),
          x_gradient.plain(),
          options.residual ? y_gradient.plain() : Values(),
          mean.plain(),
          variance.plain(),
          scale_gradient.plain(),
          shift_gradient.plain()};
}

TEST_F(CudaKernels, BatchNormIsTheCpusInEveryLayout) {
  for (const Shape& shape : {Shape{3, 8, 5, 4}, Shape{4, 3, 7, 5}, Shape{9, 5}}) {
    for (const bool residual : {false, true}) {
      const BatchNormOptions options{.activation = Activation::relu, .residual = residual};
      const auto cpu = cpu_.batch_norm(options, Layout(shape, DType::f32));
      const std::vector<Values> expected = run_batch_norm(cpu_lab_, *cpu, options);
      for (const DType type : kElementTypes) {
        for (const Layout& layout : layouts_of(shape, type)) {
          SCOPED_TRACE(layout.describe());
          const auto kernel = make_cuda_batch_norm(options, layout);
          EXPECT_EQ(kernel->layout(), layout);
          const std::vector<Values> actual = run_batch_norm(lab_, *kernel, options);
          for (std::size_t i = 0; i < expected.size(); ++i) {
            EXPECT_LT(relative_error(actual[i], widen(expected[i])), 8 * precision_of(type))
                << "result " << i;
          }
        }
      }
    }
  }
}

std::vector<Values> run_pooling(const Lab& lab, PoolingKernel& kernel) {
  // Neighbours differ: no window has two maxima.
  const auto tensor = [&](const Layout& layout) {
    Values values(static_cast<std::size_t>(layout.shape().elements()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 37 % 251) / 128 - 1;
    return TypedTensor(lab, layout, values);
  };
  const TypedTensor x = tensor(kernel.input()), y_gradient = tensor(kernel.output()), y(lab, kernel.output()),
                    x_gradient(lab, kernel.input()), saved = memory(lab, kernel.saved_bytes());
  TypedTensor scratch = memory(lab, kernel.scratch_bytes());
  kernel.forward(lab.stream, x.data(), y.data(), saved.data(), scratch.data());
  scratch.poison();
  kernel.backward(lab.stream, y_gradient.data(), saved.data(), x_gradient.data(), scratch.data());
  EXPECT_TRUE(y.padding_is_zero());
  EXPECT_TRUE(x_gradient.padding_is_zero());
  return {y.plain(), x_gradient.plain()};
}

TEST_F(CudaKernels, PoolingIsTheCpusInEveryLayout) {
  const Shape shape{2, 5, 9, 7};
  for (const PoolingKind kind : {PoolingKind::max, PoolingKind::average}) {
    for (const PoolingOptions& options :
         {PoolingOptions{.kind = kind, .kernel = 3, .stride = 2, .padding = 1},
          {.kind = kind, .global = true}}) {
      const auto cpu = cpu_.pooling(options, Layout(shape, DType::f32));
      const std::vector<Values> expected = run_pooling(cpu_lab_, *cpu);
      for (const DType type : kElementTypes) {
        for (const Layout& layout : layouts_of(shape, type)) {
          SCOPED_TRACE(layout.describe());
          const auto kernel = make_cuda_pooling(options, layout);
          EXPECT_EQ(kernel->input(), layout);
          const std::vector<Values> actual = run_pooling(lab_, *kernel);
          EXPECT_LT(relative_error(actual[0], widen(expected[0])), 2 * precision_of(type));
          EXPECT_LT(relative_error(actual[1], widen(expected[1])), 2 * precision_of(type));
        }
      }
    }
  }
}

TEST_F(CudaKernels, ImagesBecomeWhatAConvolutionTakesAsItIs) {
  std::vector<std::uint8_t> images(2 * 5 * 4 * 3);
  for (std::size_t i = 0; i < images.size(); ++i) images[i] = static_cast<std::uint8_t>(i * 37 + 11);
  const float mean[] = {0.1f, 0.5f, 0.9f};
  for (const DType type : kElementTypes) {
    const ImageInput input{
        .batch = 2, .height = 5, .width = 4, .channels = 3, .mean = mean, .deviation = {}, .type = type};
    const auto cpu = cpu_.image_input(input), kernel = make_cuda_image_input(input);
    const TypedTensor expected(cpu_lab_, cpu->output()), actual(lab_, kernel->output());
    cpu->run(stream_, images.data(), expected.data());
    kernel->run(stream_, images.data(), actual.data());
    EXPECT_EQ(actual.plain(), expected.plain());
    EXPECT_TRUE(actual.padding_is_zero());
    EXPECT_EQ(kernel->output().bytes(), 2u * 5 * 4 * 4 * size_of(type));
  }
}

TEST_F(CudaKernels, AReorderBetweenEqualLayoutsIsACopy) {
  for (const Layout& layout : layouts_of({2, 5, 3, 3}, DType::f16)) {
    const Values values = as_type(random_values(90, "plain"), DType::f16);
    const TypedTensor from(lab_, layout, values), to(lab_, layout);
    make_cuda_reorder(layout, layout)->run(stream_, from.data(), to.data());
    EXPECT_EQ(to.plain(), values);
  }
}

TEST_F(CudaKernels, WhatMakesNoSenseIsRefused) {
  EXPECT_THROW(make_cuda_batch_norm({}, Layout({2, 3, 0, 4}, DType::f32)), ConfigError);
  EXPECT_THROW(make_cuda_batch_norm({.epsilon = 0}, Layout({2, 3, 4, 4}, DType::f32)), ConfigError);
  EXPECT_THROW(make_cuda_pooling({.kernel = 5}, Layout({2, 3, 4, 4}, DType::f32)), ConfigError);
  EXPECT_THROW(make_cuda_image_input({.batch = 1, .height = 2, .width = 2, .channels = 5}), ConfigError);
}

}  // namespace
}  // namespace lockstep
