// SPDX-License-Identifier: Apache-2.0
//
// Results of cuDNN's plans on a real GPU: each candidate against the reference in double precision.
#include <algorithm>

#include <gtest/gtest.h>

#include "core/cuda/check.h"
#include "kernels/cuda/affine.h"
#include "kernels/cuda/convolution_plan.h"
#include "tests/kernels/affine_reference.h"
#include "tests/kernels/cuda_shapes.h"
#include "tests/kernels/device_tensor.h"

namespace lockstep {
namespace {

class CudnnConvolution : public testing::TestWithParam<Precision> {
 protected:
  void SetUp() override {
    const CudaStatus status = cuda_status();
    if (status.devices.empty()) GTEST_SKIP() << "no CUDA device: " << status.message;
  }
};

// The shapes that the backend passes to cuDNN: padded channels, without bias and activation.
std::vector<ConvolutionShape> shapes_in(DType type) {
  std::vector<ConvolutionShape> shapes;
  for (const ConvolutionShape& s : cuda_test_convolutions()) {
    const Layout input({s.batch, s.in_channels, s.in_height, s.in_width}, type);
    shapes.push_back(s);
    shapes.back().in_channels = plan_cuda_convolution(s, input).physical_inputs;
    shapes.back().bias = false;
    shapes.back().activation = Activation::none;
  }
  return shapes;
}

// One direction of one shape: operands on the device, the reference result in `expected`.
class Computation {
 public:
  Computation(const ConvolutionProblem& problem, Stream& stream)
      : problem_(problem),
        stream_(stream),
        x_({s().batch, s().in_channels, s().in_height, s().in_width}, problem.dtype, stream),
        w_({s().out_channels, s().in_channels / s().groups, s().kernel, s().kernel}, problem.dtype, stream),
        y_({s().batch, s().out_channels, s().out_height(), s().out_width()}, problem.dtype, stream),
        x_values_(random_values(s().batch * s().in_channels * s().in_height * s().in_width, "input")),
        w_values_(random_values(s().out_channels * s().in_channels / s().groups * s().kernel * s().kernel,
                                "weights")),
        y_values_(
            random_values(s().batch * s().out_channels * s().out_height() * s().out_width(), "gradient")) {
    x_.write(x_values_);
    w_.write(w_values_);
    y_.write(y_values_);
  }

  Doubles expected() const {
    const Doubles x = widen(x_values_), w = widen(w_values_), y = widen(y_values_);
    switch (problem_.direction) {
      case AffineDirection::forward:
        return reference_forward(s(), x, w, {});
      case AffineDirection::backward_data: {
        Doubles gradient = reference_backward_data(s(), y, w);
        for (std::size_t i = 0; s().adds_input_gradient && i < gradient.size(); ++i) gradient[i] += x[i];
        return gradient;
      }
      case AffineDirection::backward_weights:
        break;
    }
    return reference_backward_weights(s(), x, y);
  }

  Values run(cudnnHandle_t handle, ConvolutionPlan& plan) {
    result().poison();
    if (s().adds_input_gradient) x_.write(x_values_);
    Buffer workspace(std::max<std::size_t>(plan.workspace_bytes(), 1), stream_.device());
    plan.execute(handle, {.x = x_.data(), .w = w_.data(), .y = y_.data(), .scratch = workspace.data()});
    return result().read();
  }

 private:
  const ConvolutionShape& s() const { return problem_.shape; }
  DeviceTensor& result() {
    switch (problem_.direction) {
      case AffineDirection::forward:
        return y_;
      case AffineDirection::backward_data:
        return x_;
      case AffineDirection::backward_weights:
        break;
    }
    return w_;
  }

  ConvolutionProblem problem_;
  Stream& stream_;
  DeviceTensor x_, w_, y_;
  Values x_values_, w_values_, y_values_;
};

std::vector<ConvolutionProblem> problems_of(ConvolutionShape shape, const Precision& precision) {
  shape.tf32 = precision.tf32;
  std::vector<ConvolutionProblem> problems;
  for (const auto direction :
       {AffineDirection::forward, AffineDirection::backward_data, AffineDirection::backward_weights}) {
    problems.push_back({.shape = shape, .direction = direction, .dtype = precision.dtype});
  }
  shape.adds_input_gradient = true;
  problems.push_back({.shape = shape, .direction = AffineDirection::backward_data, .dtype = precision.dtype});
  return problems;
}

// cuDNN has a hundred plans for some problems; the backend times the first 8.
constexpr std::size_t kMostPlans = 12;

TEST_P(CudnnConvolution, MatchesTheReferenceByItsFirstCandidatesAndRepeatsItsBits) {
  Stream stream({.kind = DeviceKind::cuda, .index = 0}, StreamUse::compute);
  make_current(stream.device());
  const CudnnHandle handle = make_cudnn_handle();
  CUDNN_CHECK(cudnnSetStream(handle.get(), static_cast<cudaStream_t>(stream.native())));
  const CudnnTarget target(handle.get());
  std::size_t run = 0, proposed = 0;
  for (const ConvolutionShape& shape : shapes_in(GetParam().dtype)) {
    for (const ConvolutionProblem& problem : problems_of(shape, GetParam())) {
      Computation computation(problem, stream);
      const Doubles expected = computation.expected();
      proposed += convolution_candidates(problem, target).size();
      for (ConvolutionPlan& plan : plan_convolution(problem, target, {.plans = kMostPlans})) {
        ++run;
        const Values actual = computation.run(handle.get(), plan);
        EXPECT_LT(relative_error(actual, expected), GetParam().tolerance)
            << describe(problem) << ", " << plan.tag();
        EXPECT_EQ(computation.run(handle.get(), plan), actual) << describe(problem) << ", " << plan.tag();
      }
    }
  }
  fmt::print("ran {} of {} candidates, at most {} per problem\n", run, proposed, kMostPlans);
}

INSTANTIATE_TEST_SUITE_P(Precisions, CudnnConvolution, testing::ValuesIn(kPrecisions),
                         [](const auto& precision) { return precision.param.name; });

}  // namespace
}  // namespace lockstep
