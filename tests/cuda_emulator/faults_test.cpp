// SPDX-License-Identifier: Apache-2.0
//
// Faults that the environment requests occur at the specified call.
#include <cstdlib>
#include <thread>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "tests/cuda_emulator/runtime/runtime.h"

namespace lockstep::emulator {
namespace {

TEST(Faults, OccurAtTheSpecifiedCallOrSize) {
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, 8), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&data, 8), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaHostAlloc(&data, 4095, 0), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(data), cudaSuccess);
  EXPECT_EQ(cudaHostAlloc(&data, 4096, 0), cudaErrorMemoryAllocation);
  EXPECT_EQ(injected_fault("ncclAllReduce"), 3) << "this process must not get the fault of another rank";
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

// The operation that begins first hangs. The other stream continues, and the process can end.
TEST(Faults, AHangingOperationBlocksOnlyItsStream) {
  cudaStream_t failing = nullptr;
  if (cudaStreamCreate(&failing) == cudaSuccess) {
    enqueue(failing, "the first, which fails", [] {});
    cudaStreamSynchronize(failing);
  }
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  cudaStream_t streams[2] = {};
  for (cudaStream_t& stream : streams) {
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(enqueue(stream, "work", [] {}), cudaSuccess);
  }
  const auto ended = [&](int i) { return cudaStreamQuery(streams[i]) == cudaSuccess; };
  while (!ended(0) && !ended(1)) std::this_thread::yield();
  EXPECT_NE(ended(0), ended(1));
}

}  // namespace
}  // namespace lockstep::emulator

int main(int argc, char** argv) {
  setenv("LOCKSTEP_EMULATED_FAULTS",
         "cudaMalloc:2=2,cudaHostAlloc@4096=2,0/ncclAllReduce:1=3,1/"
         "ncclBroadcast:1=3,operation:1=700,operation:2=hang",
         1);
  unsetenv("OMPI_COMM_WORLD_RANK");
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
