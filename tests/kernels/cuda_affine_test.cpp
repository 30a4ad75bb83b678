// SPDX-License-Identifier: Apache-2.0
//
// Convolutions and linear layers of the CUDA backend on a GPU, compared with the reference in double
// precision.
#include "kernels/cuda/layout.h"
#include "tests/kernels/cuda_backend_fixture.h"
#include "tests/kernels/cuda_shapes.h"
#include "tests/kernels/typed_affine.h"
#include "tests/kernels/typed_kernels.h"

namespace lockstep {
namespace {

class CudaAffineKernels : public testing::TestWithParam<Precision> {
 protected:
  void SetUp() override { SKIP_WITHOUT_A_GPU(); }

  DType type() const { return GetParam().dtype; }
  std::vector<ConvolutionShape> convolutions() const {
    std::vector<ConvolutionShape> shapes = cuda_test_convolutions();
    for (ConvolutionShape& shape : shapes) shape.tf32 = GetParam().tf32;
    return shapes;
  }
};

std::string choices_of(const AffineKernel& kernel) {
  return fmt::format("{}, {}, {}", kernel.choice(AffineDirection::forward),
                     kernel.choice(AffineDirection::backward_data),
                     kernel.choice(AffineDirection::backward_weights));
}

Shape image_of(const ConvolutionShape& s) { return {s.batch, s.in_channels, s.in_height, s.in_width}; }

TEST_P(CudaAffineKernels, ConvolutionsMatchTheReferenceInEveryLayout) {
  const Side gpu(kGpu);
  for (const ConvolutionShape& shape : convolutions()) {
    for (const Layout& input : cuda_layouts_of(image_of(shape), type())) {
      KernelChoices choices;
      const auto kernel = gpu.backend.convolution(shape, input, choices);
      SCOPED_TRACE(choices_of(*kernel));
      EXPECT_EQ(kernel->input(), input);
      expect_typed_affine(gpu.lab, *kernel, shape, GetParam().tolerance);
    }
  }
}

TEST_P(CudaAffineKernels, ATimedChoiceIsKeptAndMatchesTheReference) {
  const Side gpu(kGpu);
  KernelChoices choices(ChooseBy::time);
  const ConvolutionShape shape = convolutions().front();
  const Layout input = cuda_layouts_of(image_of(shape), type())[1];
  const auto kernel = gpu.backend.convolution(shape, input, choices);
  EXPECT_EQ(choices.kept().size(), 3u);
  expect_typed_affine(gpu.lab, *kernel, shape, GetParam().tolerance);
  const auto again = gpu.backend.convolution(shape, input, choices);
  EXPECT_EQ(choices_of(*again), choices_of(*kernel));
}

TEST_P(CudaAffineKernels, LinearLayersMatchTheReferenceInEveryLayout) {
  const Side gpu(kGpu);
  for (const auto& [batch, out_features] : {std::pair{64, 10}, {33, 200}, {7, 41}}) {
    for (const Activation activation : {Activation::none, Activation::relu, Activation::relu6}) {
      const Shape image{batch, 24, 3, 5};
      const LinearShape shape{.batch = batch,
                              .in_features = 24 * 15,
                              .out_features = out_features,
                              .bias = activation != Activation::relu,
                              .activation = activation,
                              .tf32 = GetParam().tf32};
      std::vector<Layout> layouts = cuda_layouts_of(image, type());
      layouts.push_back(Layout({batch, shape.in_features}, type()));
      for (const Layout& input : layouts) {
        KernelChoices choices(activation == Activation::none ? ChooseBy::time : ChooseBy::name);
        const auto kernel = gpu.backend.linear(shape, input, choices);
        SCOPED_TRACE(choices_of(*kernel));
        expect_typed_affine(gpu.lab, *kernel, as_convolution(shape), GetParam().tolerance);
      }
    }
  }
}

TEST_P(CudaAffineKernels, TwoRunsHaveTheSameBits) {
  const Side gpu(kGpu);
  const ConvolutionShape shape{.batch = 8,
                               .in_channels = 32,
                               .in_height = 28,
                               .in_width = 28,
                               .out_channels = 64,
                               .kernel = 3,
                               .padding = 1,
                               .bias = true,
                               .tf32 = GetParam().tf32};
  KernelChoices choices;
  const auto kernel = gpu.backend.convolution(shape, cuda_layouts_of(image_of(shape), type())[1], choices);
  const auto random = [&](const Layout& layout, const char* purpose) {
    return TypedTensor(gpu.lab, layout, random_values(layout.shape().elements(), purpose));
  };
  const TypedTensor x = random(kernel->input(), "x"), y_gradient = random(kernel->output(), "y gradient");
  const TypedTensor w_gradient(gpu.lab, kernel->weights()), bias_gradient(gpu.lab, Layout({64}, DType::f32)),
      scratch(gpu.lab, Layout({static_cast<std::int64_t>(kernel->scratch_bytes())}, DType::u8));
  const auto run = [&] {
    kernel->backward_weights(gpu.lab.stream, x.data(), y_gradient.data(), w_gradient.data(),
                             bias_gradient.floats(), Write::overwrite, scratch.data());
    Values both = w_gradient.physical();
    const Values bias = bias_gradient.physical();
    both.insert(both.end(), bias.begin(), bias.end());
    return both;
  };
  EXPECT_EQ(run(), run());
}

INSTANTIATE_TEST_SUITE_P(Precisions, CudaAffineKernels, testing::ValuesIn(kPrecisions),
                         [](const auto& precision) { return precision.param.name; });

}  // namespace
}  // namespace lockstep
