// SPDX-License-Identifier: Apache-2.0
//
// Collectives of two communicators in a different order on each rank: they end only if the device can hold
// the blocks of both.
#include <chrono>
#include <thread>

#include "tests/cuda_emulator/nccl_ranks.h"
#include "tests/cuda_emulator/runtime/runtime.h"

namespace lockstep {
namespace {

// The status of this rank's second collective, while the first one waits for its peer.
cudaError_t run_in_opposite_orders(Lobby& lobby, int number) {
  TestRank rank(lobby, number, 2);
  ncclComm_t other = nullptr;
  cudaStream_t stream = nullptr;
  EXPECT_EQ(ncclCommInitRank(&other, 2, lobby.exchange_id(number, 2), number), ncclSuccess);
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  float* data = rank.memory(std::vector<float>(200, 1.0f));
  const auto reduce = [&](bool by_other) {
    float* mine = by_other ? data + 100 : data;
    EXPECT_EQ(ncclAllReduce(mine, mine, 100, ncclFloat32, ncclSum, by_other ? other : rank.comm,
                            by_other ? stream : rank.stream),
              ncclSuccess);
  };
  reduce(number == 1);
  while (emulator::resident_blocks(number) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  rank.barrier();
  reduce(number == 0);
  const cudaError_t status = cudaStreamSynchronize(number == 0 ? stream : rank.stream);
  rank.barrier();
  EXPECT_EQ(ncclCommAbort(other), ncclSuccess);
  EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
  rank.comm = nullptr;
  cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
  return status;
}

Settings blocks(const std::string& count) {
  return {"LOCKSTEP_EMULATED_MULTIPROCESSORS=1", "LOCKSTEP_EMULATED_RESIDENT=" + count};
}

// On a GPU both ranks would wait forever.
TEST(NcclEmulatorResidence, CollectivesThatDoNotFitTogetherBreakTheDevice) {
  run_ranks(2, {.settings = blocks("3")}, [](Lobby& lobby, int number) {
    EXPECT_EQ(run_in_opposite_orders(lobby, number), cudaErrorLaunchFailure);
  });
}

TEST(NcclEmulatorResidence, CollectivesThatFitTogetherSucceed) {
  run_ranks(2, {.settings = blocks("4")},
            [](Lobby& lobby, int number) { EXPECT_EQ(run_in_opposite_orders(lobby, number), cudaSuccess); });
}

// An all-gather by copy engines ends beside a collective that occupies the whole device.
TEST(NcclEmulatorResidence, CopyEnginesNeedNoBlocks) {
  run_ranks(2, {.settings = blocks("2")}, [](Lobby& lobby, int number) {
    TestRank rank(lobby, number, 2);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
    ncclComm_t other = nullptr;
    cudaStream_t stream = nullptr;
    void* memory = nullptr;
    ncclWindow_t window = nullptr;
    ASSERT_EQ(ncclCommInitRankConfig(&other, 2, lobby.exchange_id(number, 2), number, &config), ncclSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(ncclMemAlloc(&memory, 800), ncclSuccess);
    ASSERT_EQ(ncclCommWindowRegister(other, memory, 800, &window, NCCL_WIN_COLL_SYMMETRIC), ncclSuccess);
    float* const all = static_cast<float*>(memory);
    float* const data = rank.memory(std::vector<float>(100, 1.0f));
    ASSERT_EQ(cudaMemset(memory, 0, 800), cudaSuccess);
    ASSERT_EQ(cudaMemcpy(all + 100 * number, data, 400, cudaMemcpyDeviceToDevice), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    if (number == 0) {
      EXPECT_EQ(rank.all_reduce(data, 100), ncclSuccess);
      while (emulator::resident_blocks(0) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    rank.barrier();
    EXPECT_EQ(ncclAllGather(all + 100 * number, all, 100, ncclFloat32, other, stream), ncclSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    if (number == 1) {
      EXPECT_EQ(rank.all_reduce(data, 100), ncclSuccess);
    }
    EXPECT_EQ(rank.read(all, 200), std::vector<float>(200, 1.0f));
    EXPECT_EQ(rank.read(data, 1)[0], 2.0f);
    EXPECT_EQ(ncclCommWindowDeregister(other, window), ncclSuccess);
    EXPECT_EQ(ncclMemFree(memory), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(other), ncclSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  });
}

}  // namespace
}  // namespace lockstep
