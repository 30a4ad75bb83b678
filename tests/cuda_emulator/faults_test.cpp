// SPDX-License-Identifier: Apache-2.0
//
// Faults that the environment asks for come at the call they name.
#include <cstdlib>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "tests/cuda_emulator/runtime/runtime.h"

namespace lockstep::emulator {
namespace {

TEST(Faults, ComeAtTheCallOrTheSizeThatIsNamed) {
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, 8), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&data, 8), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaHostAlloc(&data, 4095, 0), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(data), cudaSuccess);
  EXPECT_EQ(cudaHostAlloc(&data, 4096, 0), cudaErrorMemoryAllocation);
  EXPECT_EQ(injected_fault("ncclAllReduce"), 3) << "another rank's is not ours";
  EXPECT_EQ(injected_fault("ncclBroadcast"), 0);
}

TEST(Faults, AnOperationThatFailsEndsTheContext) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  bool ran = false;
  ASSERT_EQ(enqueue(stream, "work", [&] { ran = true; }), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace lockstep::emulator

int main(int argc, char** argv) {
  setenv("LOCKSTEP_EMULATED_FAULTS",
         "cudaMalloc:2=2,cudaHostAlloc@4096=2,0/ncclAllReduce:1=3,1/ncclBroadcast:1=3,operation:1=700", 1);
  unsetenv("OMPI_COMM_WORLD_RANK");
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
