// SPDX-License-Identifier: Apache-2.0
//
// Planned kernels in every input layout, compared with plain tensors on the CPU.
#include "kernels/cuda/kernels.h"

#include <gtest/gtest.h>

#include "tests/cuda_emulator/device_memory.h"
#include "tests/kernels/typed_kernels.h"

namespace lockstep {
namespace {

class CudaKernels : public testing::Test {
 protected:
  Stream stream_{Device{}, StreamUse::compute};
  Backend& cpu_ = backend_for(Device{});
  Lab cpu_lab_{stream_, [this](const Layout& from, const Layout& to) { return cpu_.reorder(from, to); }};
  Lab lab_{stream_, make_cuda_reorder};
};

TEST_F(CudaKernels, BatchNormMatchesTheCpuInEveryLayout) {
  for (const Shape& shape : {Shape{3, 8, 5, 4}, Shape{4, 3, 7, 5}, Shape{9, 5}}) {
    for (const bool residual : {false, true}) {
      const BatchNormOptions options{.activation = Activation::relu, .residual = residual};
      const auto cpu = cpu_.batch_norm(options, Layout(shape, DType::f32));
      const std::vector<Values> expected = run_batch_norm(cpu_lab_, *cpu, options);
      for (const DType type : kElementTypes) {
        for (const Layout& layout : cuda_layouts_of(shape, type)) {
          SCOPED_TRACE(layout.describe());
          const auto kernel = make_cuda_batch_norm(options, layout);
          EXPECT_EQ(kernel->layout(), layout);
          const std::vector<Values> actual = run_batch_norm(lab_, *kernel, options);
          for (std::size_t i = 0; i < expected.size(); ++i) {
            EXPECT_LT(relative_error(actual[i], widen(expected[i])), 1e-6 + precision_of(type))
                << "result " << i;
          }
        }
      }
    }
  }
}

TEST_F(CudaKernels, PoolingMatchesTheCpuInEveryLayout) {
  const Shape shape{2, 5, 9, 7};
  for (const PoolingKind kind : {PoolingKind::max, PoolingKind::average}) {
    for (const PoolingOptions& options :
         {PoolingOptions{.kind = kind, .kernel = 3, .stride = 2, .padding = 1},
          {.kind = kind, .global = true}}) {
      const auto cpu = cpu_.pooling(options, Layout(shape, DType::f32));
      const std::vector<Values> expected = run_pooling(cpu_lab_, *cpu);
      for (const DType type : kElementTypes) {
        for (const Layout& layout : cuda_layouts_of(shape, type)) {
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

TEST_F(CudaKernels, ImagesAreWrittenInTheLayoutOfConvolutions) {
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
  for (const Layout& layout : cuda_layouts_of({2, 5, 3, 3}, DType::f16)) {
    const Values values = rounded(random_values(90, "plain"), DType::f16);
    const TypedTensor from(lab_, layout, values), to(lab_, layout);
    make_cuda_reorder(layout, layout)->run(stream_, from.data(), to.data());
    EXPECT_EQ(to.plain(), values);
  }
}

TEST_F(CudaKernels, InvalidOptionsAreRefused) {
  EXPECT_THROW(make_cuda_batch_norm({}, Layout({2, 3, 0, 4}, DType::f32)), ConfigError);
  EXPECT_THROW(make_cuda_batch_norm({.epsilon = 0}, Layout({2, 3, 4, 4}, DType::f32)), ConfigError);
  EXPECT_THROW(make_cuda_pooling({.kernel = 5}, Layout({2, 3, 4, 4}, DType::f32)), ConfigError);
  EXPECT_THROW(make_cuda_image_input({.batch = 1, .height = 2, .width = 2, .channels = 5}), ConfigError);
}

}  // namespace
}  // namespace lockstep
