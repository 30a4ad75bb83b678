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

}  // namespace
}  // namespace lockstep
