// SPDX-License-Identifier: Apache-2.0
//
// How the CUDA backend finds plans, where it takes the emulated device to see it.
#include <set>

#include <gtest/gtest.h>

#include "core/cuda/check.h"
#include "kernels/cuda/convolution_plan.h"

namespace lockstep {
namespace {

constexpr Device kDevice{.kind = DeviceKind::cuda, .index = 0};

// Of a dilated convolution mode B thinks otherwise than mode A.
TEST(PlanChoice, AsksBothHeuristicsInTurnsAndTakesNothingTwice) {
  make_current(kDevice);
  const CudnnHandle handle = make_cudnn_handle();
  const CudnnTarget target(handle.get());
  ConvolutionProblem problem{.shape = {.batch = 2,
                                       .in_channels = 16,
                                       .in_height = 9,
                                       .in_width = 9,
                                       .out_channels = 16,
                                       .kernel = 3,
                                       .padding = 1},
                             .dtype = DType::f16};
  const auto tag = [](int tile, int stages) {
    static_assert(CUDNN_KNOB_TYPE_TILE_SIZE < CUDNN_KNOB_TYPE_STAGES);
    return fmt::format("eng6_k{}={}_k{}={}", static_cast<int>(CUDNN_KNOB_TYPE_TILE_SIZE), tile,
                       static_cast<int>(CUDNN_KNOB_TYPE_STAGES), stages);
  };
  const auto first_tags = [&] {
    std::vector<std::string> tags;
    for (const ConvolutionPlan& plan : plan_convolution(problem, target)) tags.push_back(plan.tag());
    EXPECT_EQ(std::set(tags.begin(), tags.end()).size(), tags.size());
    EXPECT_EQ(tags.size(), PlanLimits().plans);
    tags.resize(2);
    return tags;
  };
  EXPECT_EQ(first_tags(), (std::vector{tag(1, 3), tag(0, 4)})) << "both of mode A";
  problem.shape.dilation = 2;
  EXPECT_EQ(first_tags(), (std::vector{tag(1, 3), tag(0, 2)})) << "one of each";
  EXPECT_TRUE(find_convolution_plan(problem, target, tag(0, 2)));
}

}  // namespace
}  // namespace lockstep
