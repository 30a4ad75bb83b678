// SPDX-License-Identifier: Apache-2.0
//
// How the CUDA backend finds and times plans, as only the emulated device can show it.
#include <chrono>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "core/cuda/check.h"
#include "core/error.h"
#include "kernels/cuda/convolution_plan.h"
#include "kernels/cuda/products.h"
#include "kernels/cuda/timing.h"
#include "tests/cuda_emulator/libraries/cudnn_engines.h"
#include "tests/cuda_emulator/runtime/runtime.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

constexpr Device kDevice{.kind = DeviceKind::cuda, .index = 0};

// For a dilated convolution, heuristic mode B proposes other plans than mode A.
TEST(PlanChoice, AsksBothHeuristicsInTurnsWithoutDuplicates) {
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
  EXPECT_EQ(first_tags(), (std::vector{tag(1, 3), tag(0, 4)})) << "both plans must be of mode A";
  problem.shape.dilation = 2;
  EXPECT_EQ(first_tags(), (std::vector{tag(1, 3), tag(0, 2)})) << "expected one plan of each mode";
  EXPECT_TRUE(find_convolution_plan(problem, target, tag(0, 2)));
}

TEST(PlanChoice, TimedCallsStartWithAColdCache) {
  int cache_bytes = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&cache_bytes, cudaDevAttrL2CacheSize, kDevice.index));
  CudaStopwatch stopwatch(kDevice);
  std::vector<std::uint64_t> filled;  // before each call
  stopwatch.microseconds([&] {
    const auto stream = static_cast<cudaStream_t>(stopwatch.stream().native());
    CUDA_CHECK(emulator::enqueue(stream, "a kernel", [&] { filled.push_back(emulator::filled_bytes()); }));
  });
  ASSERT_GE(filled.size(), 5u);
  for (std::size_t i = 1; i < filled.size(); ++i)
    EXPECT_GE(filled[i] - filled[i - 1], static_cast<std::uint64_t>(cache_bytes)) << "call " << i;
}

constexpr ConvolutionShape kShape = {.batch = 2,
                                     .in_channels = 16,
                                     .in_height = 9,
                                     .in_width = 9,
                                     .out_channels = 16,
                                     .kernel = 3,
                                     .padding = 1,
                                     .bias = false};
const Layout kInput({2, 16, 9, 9}, DType::f16);

TEST(PlanChoice, EqualProblemsShareTheirPlans) {
  CudaLibraries libraries(kDevice);
  KernelChoices choices;
  make_cuda_convolution(libraries, kShape, kInput, choices);
  const std::uint64_t built = emulator::cudnn::plans_built();
  make_cuda_convolution(libraries, kShape, kInput, choices);
  EXPECT_EQ(emulator::cudnn::plans_built(), built);
  ConvolutionShape larger = kShape;
  larger.batch = 4;
  make_cuda_convolution(libraries, larger, Layout({4, 16, 9, 9}, DType::f16), choices);
  EXPECT_GT(emulator::cudnn::plans_built(), built) << "another problem needs its own plans";
}

TEST(PlanChoice, AKnownChoiceBuildsOnlyItsOwnPlan) {
  KernelChoices choices(ChooseBy::time);
  {
    CudaLibraries libraries(kDevice);
    make_cuda_convolution(libraries, kShape, kInput, choices);
  }
  EXPECT_EQ(choices.kept().size(), 3u);
  CudaLibraries libraries(kDevice);
  const std::uint64_t built = emulator::cudnn::plans_built();
  make_cuda_convolution(libraries, kShape, kInput, choices);
  EXPECT_EQ(emulator::cudnn::plans_built() - built, 3u) << "expected one plan for each direction";
}

// Products that copy their input; some fail when they run.
ProductSource products_where(std::function<bool(int)> fails) {
  return {.all = [fails] {
    std::vector<AffineProduct> products;
    for (int i = 0; i < 3; ++i) {
      products.push_back({.name = fmt::format("product{}", i),
                          .scratch_bytes = 0,
                          .run = [fails, i](Stream& stream, const AffineOperands& operands) {
                            if (fails(i)) throw Error(exit_code::failed, fmt::format("product {} fails", i));
                            stream.copy(const_cast<void*>(operands.y), operands.x, 16);
                          }});
    }
    return products;
  }};
}

TEST(PlanChoice, FailingProductsAreExcludedFromEveryChoice) {
  const CudaAffinePlan plan = plan_cuda_convolution(kShape, kInput);
  for (const ChooseBy by : {ChooseBy::name, ChooseBy::time}) {
    CudaLibraries libraries(kDevice);
    KernelChoices choices(by, "product1");
    const auto choose = [&](const char* key, std::function<bool(int)> fails) {
      return choose_product(choices, key, products_where(std::move(fails)), libraries, plan).name;
    };
    EXPECT_EQ(choose("first fails", [](int i) { return i < 2; }), "product2");
    choices.keep("kept one fails", {.candidate = "product0"});
    EXPECT_NE(choose("kept one fails", [](int i) { return i == 0; }), "product0");
    const std::string message = message_of<Error>([&] { choose("all of them", [](int) { return true; }); });
    expect_parts(message, {"all of them", "product 2 fails"});
  }
}

// cuDNN proposes plans for large batches in fp32 that take many times as long as the best.
TEST(PlanChoice, ASlowProductIsCalledAtMostTwice) {
  int slow_calls = 0;
  const ProductSource source{.all = [&] {
    std::vector<AffineProduct> products;
    for (const bool slow : {true, false}) {
      products.push_back({.name = slow ? "slow" : "fast",
                          .scratch_bytes = 0,
                          .run = [&slow_calls, slow](Stream& stream, const AffineOperands&) {
                            slow_calls += slow ? 1 : 0;
                            const auto native = static_cast<cudaStream_t>(stream.native());
                            CUDA_CHECK(emulator::enqueue(native, "a kernel", [slow] {
                              if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(200));
                            }));
                          }});
    }
    return products;
  }};
  CudaLibraries libraries(kDevice);
  KernelChoices choices(ChooseBy::time);
  const CudaAffinePlan plan = plan_cuda_convolution(kShape, kInput);
  EXPECT_EQ(choose_product(choices, "one is slow", source, libraries, plan).name, "fast");
  EXPECT_LE(slow_calls, 2);
}

TEST(PlanChoice, AChoiceThatTheLibraryLacksIsMadeAgain) {
  CudaLibraries libraries(kDevice);
  KernelChoices choices(ChooseBy::time);
  make_cuda_convolution(libraries, kShape, kInput, choices);
  const auto known = choices.kept();
  for (const auto& [key, choice] : known) choices.keep(key, {.candidate = "eng99"});
  make_cuda_convolution(libraries, kShape, kInput, choices);
  for (const auto& [key, choice] : choices.kept()) EXPECT_NE(choice.candidate, "eng99") << key;
}

}  // namespace
}  // namespace lockstep
