// SPDX-License-Identifier: Apache-2.0
//
// The affine kernels of the CUDA backend. A reference implementation replaces the library's products.
#include "kernels/cuda/affine.h"

#include <gtest/gtest.h>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/layout.h"
#include "tests/cuda_emulator/device_memory.h"
#include "tests/kernels/typed_affine.h"

namespace lockstep {
namespace {

// A tensor as the library sees it: [outer, channels, pixels], channels last.
struct Matrix {
  std::int64_t outer, channels, pixels;

  std::int64_t elements() const { return outer * channels * pixels; }
  // visit(index in C, H, W order, index in memory)
  template <typename Visit>
  void each(Visit visit) const {
    std::size_t plain = 0;
    for (std::int64_t o = 0; o < outer; ++o) {
      for (std::int64_t c = 0; c < channels; ++c) {
        for (std::int64_t p = 0; p < pixels; ++p) {
          visit(plain++, static_cast<std::size_t>((o * pixels + p) * channels + c));
        }
      }
    }
  }
  Doubles read(const void* memory, DType type) const {
    const Values physical = from_elements(memory, static_cast<std::size_t>(elements()) * size_of(type), type);
    Doubles plain(physical.size());
    each([&](std::size_t to, std::size_t from) { plain[to] = physical[from]; });
    return plain;
  }
  void write(const Doubles& plain, const void* memory, DType type) const {
    Values physical(plain.size());
    each([&](std::size_t from, std::size_t to) { physical[to] = static_cast<float>(plain[from]); });
    const std::vector<std::byte> bytes = to_elements(physical, type);
    std::memcpy(const_cast<void*>(memory), bytes.data(), bytes.size());
  }
};

constexpr std::size_t kWorkspace = 1000;

struct Library {
  ConvolutionShape shape;
  DType type;

  Matrix x() const { return {shape.batch, shape.in_channels, shape.in_height * shape.in_width}; }
  Matrix w() const {
    return {shape.out_channels, shape.in_channels / shape.groups, shape.kernel * shape.kernel};
  }
  Matrix y() const { return {shape.batch, shape.out_channels, shape.out_height() * shape.out_width()}; }

  // A product that overwrites its workspace and checks the preconditions of the library.
  AffineProduct product(AffineDirection direction, bool adds) const {
    AffineProduct made{.name = "reference", .scratch_bytes = kWorkspace, .adds = adds};
    made.run = [library = *this, direction, adds](Stream&, const AffineOperands& o) {
      EXPECT_TRUE(adds || o.write == Write::overwrite);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(o.scratch) % kWorkspaceAlignment, 0u);
      std::memset(o.scratch, 0xff, kWorkspace);
      library.compute(direction, o);
    };
    return made;
  }

  void compute(AffineDirection direction, const AffineOperands& o) const {
    if (direction == AffineDirection::forward) {
      return y().write(reference_forward(shape, x().read(o.x, type), w().read(o.w, type), {}), o.y, type);
    }
    if (direction == AffineDirection::backward_data) {
      return x().write(reference_backward_data(shape, y().read(o.y, type), w().read(o.w, type)), o.x, type);
    }
    Doubles gradient = reference_backward_weights(shape, x().read(o.x, type), y().read(o.y, type));
    if (o.write == Write::accumulate) {
      const Doubles before = w().read(o.w, type);
      for (std::size_t i = 0; i < before.size(); ++i) gradient[i] += before[i];
    }
    w().write(gradient, o.w, type);
  }
};

// A kernel with such a library. adds: the library itself can add to the gradient of weights.
std::unique_ptr<AffineKernel> kernel_of(const CudaAffinePlan& plan, const ConvolutionShape& shape,
                                        bool adds) {
  Library library{shape, plan.result.type};
  library.shape.in_channels = plan.physical_inputs;
  return make_cuda_affine(plan, [&](AffineDirection direction) {
    return library.product(direction, adds && direction == AffineDirection::backward_weights);
  });
}

class CudaAffine : public testing::Test {
 protected:
  Stream stream_{Device{}, StreamUse::compute};
  Lab lab_{stream_, make_cuda_reorder};

  void expect_convolution(const ConvolutionShape& shape, const Layout& input) {
    const auto kernel = kernel_of(plan_cuda_convolution(shape, input), shape, false);
    EXPECT_EQ(kernel->input(), input);
    expect_typed_affine(lab_, *kernel, shape, 4 * precision_of(input.dtype()));
  }
};

Layout last(const Shape& image, DType type, std::int64_t physical) {
  return channels_last_layout(image, type,
                              {.outer = image[0],
                               .channels = image[1],
                               .pixels = image[2] * image[3],
                               .physical_channels = physical});
}

TEST_F(CudaAffine, ConvolutionsMatchTheReferenceInEveryLayout) {
  const ConvolutionShape image{.batch = 2,
                               .in_channels = 3,
                               .in_height = 7,
                               .in_width = 6,
                               .out_channels = 5,
                               .kernel = 3,
                               .padding = 1,
                               .bias = true,
                               .activation = Activation::relu};
  for (const DType type : kElementTypes) {
    for (const std::int64_t channels : {1, 2, 3, 5, 16}) {
      for (const Activation activation : {Activation::none, Activation::relu, Activation::relu6}) {
        ConvolutionShape shape = image;
        shape.in_channels = channels;
        shape.activation = activation;
        shape.bias = channels != 5;
        shape.stride = channels == 2 ? 2 : 1;
        const Shape sizes{shape.batch, channels, shape.in_height, shape.in_width};
        SCOPED_TRACE(fmt::format("{} channels in {}", channels, name_of(type)));
        expect_convolution(shape, Layout(sizes, type));
        expect_convolution(shape, last(sizes, type, channels));
        expect_convolution(shape, last(sizes, type, channels + 1));
      }
    }
  }
}

TEST_F(CudaAffine, GroupedConvolutionsUseUnpaddedInput) {
  for (const DType type : kElementTypes) {
    for (const std::int64_t groups : {3, 6}) {
      const ConvolutionShape shape{.batch = 2,
                                   .in_channels = 6,
                                   .in_height = 5,
                                   .in_width = 4,
                                   .out_channels = 12,
                                   .kernel = 3,
                                   .padding = 1,
                                   .groups = groups};
      const Shape sizes{2, 6, 5, 4};
      expect_convolution(shape, Layout(sizes, type));
      expect_convolution(shape, last(sizes, type, 6));
      expect_convolution(shape, last(sizes, type, 8));
    }
  }
}

TEST_F(CudaAffine, ConvolutionsWithoutAnInputGradientRefuseBackwardData) {
  const ConvolutionShape shape{.batch = 1,
                               .in_channels = 3,
                               .in_height = 4,
                               .in_width = 4,
                               .out_channels = 2,
                               .input_gradient = false};
  expect_convolution(shape, last({1, 3, 4, 4}, DType::f16, 4));
  const auto kernel = kernel_of(plan_cuda_convolution(shape, Layout({1, 3, 4, 4}, DType::f32)), shape, false);
  EXPECT_THROW(kernel->backward_data(stream_, nullptr, nullptr, nullptr, nullptr), Error);
}

TEST_F(CudaAffine, ImagesHaveChannelsPaddedForTensorCores) {
  const ConvolutionShape shape{
      .batch = 2, .in_channels = 3, .in_height = 4, .in_width = 4, .out_channels = 8, .kernel = 3};
  const CudaAffinePlan plan = plan_cuda_convolution(shape, last({2, 3, 4, 4}, DType::f16, 4));
  EXPECT_EQ(plan.physical_inputs, 4);
  EXPECT_EQ(plan.input.bytes(), 0u) << "an input in the right layout must not be copied";
  EXPECT_EQ(plan.weights, channels_last_layout({8, 3, 3, 3}, DType::f16, {8, 3, 9, 4}));
  EXPECT_EQ(plan.output, last({2, 8, 2, 2}, DType::f16, 8));
}

TEST_F(CudaAffine, LinearLayersReadImagesInAnyLayoutWithoutACopy) {
  for (const DType type : kElementTypes) {
    for (const Activation activation : {Activation::none, Activation::relu}) {
      const LinearShape shape{.batch = 3,
                              .in_features = 3 * 20,
                              .out_features = 7,
                              .bias = activation != Activation::none,
                              .activation = activation};
      const ConvolutionShape as_convolution{.batch = 3,
                                            .in_channels = 60,
                                            .in_height = 1,
                                            .in_width = 1,
                                            .out_channels = 7,
                                            .bias = shape.bias,
                                            .activation = activation};
      for (const Layout& input : {Layout({3, 60}, type), Layout({3, 3, 4, 5}, type),
                                  last({3, 3, 4, 5}, type, 3), last({3, 3, 4, 5}, type, 4)}) {
        const CudaAffinePlan plan = plan_cuda_linear(shape, input);
        EXPECT_EQ(plan.input.bytes(), 0u);
        const auto kernel = kernel_of(plan, as_convolution, true);
        expect_typed_affine(lab_, *kernel, as_convolution, 4 * precision_of(type));
      }
    }
  }
}

TEST_F(CudaAffine, InvalidShapesAreRefused) {
  const Layout input({2, 3, 4, 4}, DType::f32);
  const ConvolutionShape shape{
      .batch = 2, .in_channels = 3, .in_height = 4, .in_width = 4, .out_channels = 8};
  ConvolutionShape wrong = shape;
  wrong.groups = 2;
  EXPECT_THROW(plan_cuda_convolution(wrong, input), ConfigError);
  wrong = shape;
  wrong.kernel = 5;
  EXPECT_THROW(plan_cuda_convolution(wrong, input), ConfigError);
  wrong = shape;
  wrong.in_channels = 4;
  EXPECT_THROW(plan_cuda_convolution(wrong, input), ConfigError);
  EXPECT_THROW(plan_cuda_linear({.batch = 2, .in_features = 49, .out_features = 5}, input), ConfigError);
  EXPECT_THROW(plan_cuda_linear({.batch = 2, .in_features = 48, .out_features = 0}, input), ConfigError);
}

}  // namespace
}  // namespace lockstep
