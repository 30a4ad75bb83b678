// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kernels/cuda/convolution_plan.h"

namespace lockstep {
namespace {

constexpr const char* kH200 = R"({"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"multiProcessorCount":132,"warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"totalGlobalMem":150754820096,"smClockRateKHz":1980000,"memClockRateKHz":3201000,"l2CacheSize":62914560,"cudaDeviceId":0,"deviceVer":900,"driverVer":13000,"deviceName":"NVIDIA H200"})";

TEST(CudnnPlans, One) {
  const CudnnTarget target = CudnnTarget::described(kH200);
  const ConvolutionProblem problem{.shape = {.batch = 64, .in_channels = 64, .in_height = 56, .in_width = 56, .out_channels = 64, .kernel = 3, .padding = 1}, .dtype = DType::f16};
  for (const auto& c : convolution_candidates(problem, target)) {
    auto plan = ConvolutionPlan::build(c, target);
    fmt::print("{} {}\n", c.tag, plan ? (long)plan->workspace_bytes() : -1L);
  }
  EXPECT_FALSE(plan_convolution(problem, target).empty());
}

}  // namespace
}  // namespace lockstep
