// SPDX-License-Identifier: Apache-2.0
//
// Each convolution of the shipped networks has a plan on Lockstep's target GPUs within the allowed workspace.
// cuDNN plans for a described device, without a GPU or a driver.
#include <algorithm>
#include <map>
#include <ostream>
#include <set>

#include <gtest/gtest.h>

#include "core/text/named_entries.h"
#include "kernels/cuda/affine.h"
#include "kernels/cuda/convolution_plan.h"
#include "kernels/cuda/image_input.h"
#include "models/networks/networks.h"
#include "tests/kernels/cuda_shapes.h"
#include "tests/kernels/typed_kernels.h"
#include "tests/message_of.h"
#include "tests/models/convolutions_of.h"

namespace lockstep {
namespace {

struct GpuModel {
  const char* name;
  int compute_capability;  // times 100
  int multiprocessors;
  int shared_memory_bytes;  // per block, at most, when it opts in
  std::int64_t memory_bytes;
  int l2_bytes;
  int clock_khz;
  int memory_clock_khz;
};
// Sources: CUDA C++ Programming Guide, "Compute Capabilities", and NVIDIA's data sheets.
constexpr GpuModel kH200{"NVIDIA H200", 900, 132, 227 << 10, 150'754'820'096, 60 << 20, 1'980'000, 3'201'000};
constexpr GpuModel kA100{"NVIDIA A100-SXM4-80GB", 800,      108,       163 << 10,
                         85'094'039'552,          40 << 20, 1'410'000, 1'593'000};

CudnnTarget target_of(const GpuModel& gpu) {
  return CudnnTarget::described(fmt::format(
      R"({{"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,)"
      R"("multiProcessorCount":{},"warpSize":32,"maxSharedMemoryPerBlock":49152,)"
      R"("maxSharedMemoryPerBlockOptin":{},"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,)"
      R"("maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,)"
      R"("supportCoopLaunch":1,"totalGlobalMem":{},"smClockRateKHz":{},"memClockRateKHz":{},)"
      R"("l2CacheSize":{},"cudaDeviceId":0,"deviceVer":{},"driverVer":13000,"deviceName":"{}"}})",
      gpu.multiprocessors, gpu.shared_memory_bytes, gpu.memory_bytes, gpu.clock_khz, gpu.memory_clock_khz,
      gpu.l2_bytes, gpu.compute_capability, gpu.name));
}

struct Precision {
  const char* name;
  DType dtype;
  bool tf32;
};
constexpr Precision kFp32{"fp32", DType::f32, false};
constexpr Precision kTf32{"tf32", DType::f32, true};
constexpr Precision kFp16{"fp16", DType::f16, false};
constexpr Precision kBf16{"bf16", DType::bf16, false};

struct Images {
  const char* network;
  std::int64_t batch;
  std::int64_t size;
  std::int64_t channels = 3;
};
constexpr Images kNetworks[] = {{"cnn", 64, 28, 1},       {"resnet20", 64, 32},   {"resnet18", 64, 32},
                                {"resnet34", 64, 32},     {"resnet50", 64, 32},   {"vgg11_bn", 64, 32},
                                {"mobilenet_v2", 64, 32}, {"resnet18", 256, 224}, {"resnet34", 256, 224},
                                {"resnet50", 256, 224},   {"vgg11_bn", 64, 224},  {"mobilenet_v2", 256, 224},
                                {"unet", 16, 64}};

Graph graph_of(const Images& images) {
  Graph graph({.batch = images.batch,
               .height = images.size,
               .width = images.size,
               .channels = images.channels,
               .classes = 10,
               .masks = images.network == std::string_view("unet")});
  build_network(graph, {.name = images.network});
  return graph;
}

std::vector<ConvolutionShape> convolutions_of(const Images& images, const Precision& precision) {
  std::vector<ConvolutionShape> shapes = convolutions_of(graph_of(images));
  for (ConvolutionShape& shape : shapes) {
    if (!shape.input_gradient) shape.in_channels = padded_channels(shape.in_channels, precision.dtype);
    shape.tf32 = precision.tf32;
  }
  return shapes;
}

std::vector<ConvolutionProblem> problems_of(const ConvolutionShape& shape, const Precision& precision) {
  std::vector<ConvolutionProblem> problems;
  for (const auto direction :
       {AffineDirection::forward, AffineDirection::backward_data, AffineDirection::backward_weights}) {
    if (direction == AffineDirection::backward_data && !shape.input_gradient) continue;
    problems.push_back({.shape = shape, .direction = direction, .dtype = precision.dtype});
  }
  return problems;
}

// The reason why cuDNN cannot be used here; empty if it can.
std::string obstacle() {
  return message_of([] { CudnnDescriptor descriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR); });
}

class CudnnPlanning : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = obstacle(); !why.empty()) GTEST_SKIP() << "no cuDNN: " << why;
  }
};

std::vector<std::string> tags_of(const std::vector<ConvolutionCandidate>& candidates) {
  std::vector<std::string> tags;
  for (const ConvolutionCandidate& candidate : candidates) tags.push_back(candidate.tag);
  return tags;
}

// A 3x3 convolution of resnet50's second stage.
ConvolutionProblem convolution_3x3(const Precision& precision,
                                   AffineDirection direction = AffineDirection::forward) {
  return {.shape = {.batch = 64,
                    .in_channels = 128,
                    .in_height = 28,
                    .in_width = 28,
                    .out_channels = 128,
                    .kernel = 3,
                    .padding = 1,
                    .tf32 = precision.tf32},
          .direction = direction,
          .dtype = precision.dtype};
}

TEST_F(CudnnPlanning, TestsEveryShippedNetworkWithConvolutions) {
  const std::set<std::string> listed = [] {
    std::set<std::string> names;
    for (const Images& images : kNetworks) names.insert(images.network);
    return names;
  }();
  for (const std::string& name : names_in(network_table())) {
    if (name == kLayersNetwork) continue;
    const bool convolves = !convolutions_of({name.c_str(), 1, 32}, kFp32).empty();
    EXPECT_EQ(listed.contains(name), convolves) << name;
  }
}

TEST_F(CudnnPlanning, ProposesTheSamePlansInTheSameOrder) {
  const ConvolutionProblem problem = convolution_3x3(kFp16);
  const auto tags = tags_of(convolution_candidates(problem, target_of(kH200)));
  EXPECT_GT(tags.size(), 8u);
  EXPECT_EQ(tags, tags_of(convolution_candidates(problem, target_of(kH200))));
  EXPECT_EQ(std::set(tags.begin(), tags.end()).size(), tags.size());
}

TEST_F(CudnnPlanning, FindsAPlanByItsTag) {
  const CudnnTarget target = target_of(kH200);
  const ConvolutionProblem problem = convolution_3x3(kFp16, AffineDirection::backward_weights);
  for (const ConvolutionPlan& plan : plan_convolution(problem, target)) {
    const auto again = find_convolution_plan(problem, target, plan.tag());
    ASSERT_TRUE(again) << plan.tag();
    EXPECT_EQ(again->tag(), plan.tag());
    EXPECT_EQ(again->workspace_bytes(), plan.workspace_bytes());
  }
  EXPECT_FALSE(find_convolution_plan(problem, target, "eng9999"));
}

TEST_F(CudnnPlanning, RespectsTheLimitsOfWorkspaceAndPlans) {
  const CudnnTarget target = target_of(kH200);
  const ConvolutionProblem problem = convolution_3x3(kFp16, AffineDirection::backward_weights);
  const auto most_workspace = [&](const PlanLimits& limits) {
    std::size_t most = 0;
    for (const ConvolutionPlan& plan : plan_convolution(problem, target, limits)) {
      most = std::max(most, plan.workspace_bytes());
    }
    return most;
  };
  EXPECT_GT(most_workspace({.plans = 100}), std::size_t{1} << 20);
  EXPECT_LE(most_workspace({.workspace_bytes = 1 << 20, .plans = 100}), std::size_t{1} << 20);
  EXPECT_EQ(plan_convolution(problem, target, {.plans = 3}).size(), 3u);
}

bool on_tensor_cores(const ConvolutionCandidate& candidate) {
  const auto engine = std::move(
      candidate.configuration->descriptors(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1)
          .front());
  const auto notes = engine.values<cudnnBackendNumericalNote_t>(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, 32);
  return std::ranges::count(notes, CUDNN_NUMERICAL_NOTE_TENSOR_CORE) > 0;
}

TEST_F(CudnnPlanning, Fp32AvoidsTensorCoresUnlessTf32IsRequested) {
  for (const GpuModel& gpu : {kH200, kA100}) {
    const auto exact = convolution_candidates(convolution_3x3(kFp32), target_of(gpu));
    const auto rounded = convolution_candidates(convolution_3x3(kTf32), target_of(gpu));
    EXPECT_TRUE(std::ranges::none_of(exact, on_tensor_cores)) << gpu.name;
    EXPECT_TRUE(std::ranges::any_of(rounded, on_tensor_cores)) << gpu.name;
    EXPECT_TRUE(on_tensor_cores(rounded.front())) << gpu.name << ": " << rounded.front().tag;
  }
}

TEST_F(CudnnPlanning, NamesTheProblemWithoutAPlan) {
  const GpuModel t4{"Tesla T4", 750, 40, 64 << 10, 15'843'721'216, 4 << 20, 1'590'000, 5'001'000};
  EXPECT_FALSE(plan_convolution(convolution_3x3(kFp16), target_of(t4)).empty());
  const ConvolutionProblem problem = convolution_3x3(kBf16);
  expect_parts(message_of<ConfigError>([&] { plan_convolution(problem, target_of(t4)); }),
               {describe(problem), "bf16", "28x28"});
}

TEST_F(CudnnPlanning, NamesTheMissingFieldOfADescription) {
  const std::string message = message_of<Error>([] { CudnnTarget::described(R"({"warpSize":32})"); });
  EXPECT_NE(message.find("maxGridSize"), std::string::npos) << message;
}

struct Case {
  GpuModel gpu;
  Precision precision;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.precision.name << " on " << c.gpu.name; }

class CudnnPlans : public CudnnPlanning, public testing::WithParamInterface<Case> {
 protected:
  // The workspace of the first choice, cached.
  std::size_t workspace_bytes(const ConvolutionProblem& problem, const CudnnTarget& target) {
    const auto [found, inserted] = planned_.try_emplace(describe(problem), 0);
    if (!inserted) return found->second;
    try {
      found->second = plan_convolution(problem, target, {.plans = 1}).front().workspace_bytes();
    } catch (const ConfigError& error) {
      ADD_FAILURE() << error.what();
    }
    return found->second;
  }

  std::map<std::string, std::size_t> planned_;
};

TEST_P(CudnnPlans, ExistForEveryConvolutionOfEveryNetwork) {
  const CudnnTarget target = target_of(GetParam().gpu);
  fmt::print("{:<22} {:>5} {:>13}  {}\n", "network", "batch", "workspace MiB", "of");
  for (const Images& images : kNetworks) {
    std::size_t most = 0;
    std::string where;
    for (const ConvolutionShape& shape : convolutions_of(images, GetParam().precision)) {
      for (const ConvolutionProblem& problem : problems_of(shape, GetParam().precision)) {
        const std::size_t bytes = workspace_bytes(problem, target);
        if (bytes > most || where.empty()) where = describe(problem);
        most = std::max(most, bytes);
      }
    }
    fmt::print("{:<22} {:>5} {:>13.1f}  {}\n",
               fmt::format("{}, {}x{}", images.network, images.size, images.size), images.batch,
               static_cast<double>(most) / (1 << 20), where);
  }
  fmt::print("{} distinct problems\n", planned_.size());
}

// The convolutions that kernels_cuda_test uses on a GPU.
TEST_P(CudnnPlans, ExistForTheBackendsTests) {
  const Precision& precision = GetParam().precision;
  for (ConvolutionShape shape : cuda_test_convolutions()) {
    shape.tf32 = precision.tf32;
    const Shape image{shape.batch, shape.in_channels, shape.in_height, shape.in_width};
    for (const Layout& input : cuda_layouts_of(image, precision.dtype)) {
      ConvolutionShape physical = shape;
      physical.in_channels = plan_cuda_convolution(shape, input).physical_inputs;
      for (const ConvolutionProblem& problem : problems_of(physical, precision)) {
        workspace_bytes(problem, target_of(GetParam().gpu));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gpus, CudnnPlans,
                         testing::Values(Case{kH200, kFp32}, Case{kH200, kTf32}, Case{kH200, kFp16},
                                         Case{kH200, kBf16}, Case{kA100, kFp32}, Case{kA100, kTf32},
                                         Case{kA100, kFp16}, Case{kA100, kBf16}),
                         [](const auto& c) {
                           return fmt::format("sm{}_{}", c.param.gpu.compute_capability / 10,
                                              c.param.precision.name);
                         });

}  // namespace
}  // namespace lockstep
