// SPDX-License-Identifier: Apache-2.0
//
// How the CUDA backend finds plans and times them, where it takes the emulated device to see it.
#include <set>

#include <gtest/gtest.h>

#include "core/cuda/check.h"
#include "kernels/cuda/convolution_plan.h"
#include "kernels/cuda/timing.h"
#include "tests/cuda_emulator/runtime/runtime.h"

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

TEST(PlanChoice, NothingTimedFindsItsOperandsInTheCache) {
  int cache_bytes = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&cache_bytes, cudaDevAttrL2CacheSize, kDevice.index));
  CudaStopwatch stopwatch(kDevice);
  std::vector<std::uint64_t> filled;  // before each call
  const double time = stopwatch.microseconds([&] {
    const auto stream = static_cast<cudaStream_t>(stopwatch.stream().native());
    CUDA_CHECK(emulator::enqueue(stream, "a kernel", [&] { filled.push_back(emulator::filled_bytes()); }));
  });
  EXPECT_GE(time, 0);
  ASSERT_GE(filled.size(), 5u);
  for (std::size_t i = 1; i < filled.size(); ++i)
    EXPECT_GE(filled[i] - filled[i - 1], static_cast<std::uint64_t>(cache_bytes)) << "call " << i;
}

}  // namespace
}  // namespace lockstep
