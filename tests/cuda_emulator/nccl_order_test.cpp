// SPDX-License-Identifier: Apache-2.0
//
// The order that ThreadSanitizer sees in the emulated NCCL: exactly the order that collectives guarantee,
// also between ranks of one process. Cases named HasARace.. contain a race that must be found.
#include <chrono>
#include <thread>

#include "tests/cuda_emulator/nccl_ranks.h"

namespace lockstep {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr int kRaceFound = 66;
#else
constexpr int kRaceFound = 0;  // no ThreadSanitizer
#endif

void run_threads_of_ranks(int exit_code, void (*body)(TestRank& rank, float* data)) {
  const RanksOptions options = {
      .ranks_are = RanksAre::threads,
      .settings = {"LOCKSTEP_EMULATED_HOST_ACCESS=allowed"},  // for races with the host
      .exit_code = exit_code};
  run_ranks(2, options, [body](Lobby& lobby, int number) {
    TestRank rank(lobby, number, 2);
    body(rank, rank.memory(std::vector<float>(1000, 1.0f)));
    rank.synchronize();
  });
}

// Waits long enough for the other side to come first. This orders nothing.
void let_it_run() { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }

TEST(NcclEmulatorOrder, OneStreamOrdersItsCollectives) {
  run_threads_of_ranks(0, [](TestRank& rank, float* data) {
    void* handle = nullptr;
    EXPECT_EQ(ncclCommRegister(rank.comm, data, 4000, &handle), ncclSuccess);
    for (int i = 0; i < 5; ++i) {
      rank.all_reduce(data, 1000);
      ncclBroadcast(data, data, 1000, ncclFloat32, i % 2, rank.comm, rank.stream);
    }
    const cudaGraphExec_t graph = rank.capture([&] { rank.all_reduce(data, 1000); });
    for (int i = 0; i < 5; ++i) cudaGraphLaunch(graph, rank.stream);
    rank.read(data, 1000);
    EXPECT_EQ(rank.async_error(), ncclSuccess);
    cudaGraphExecDestroy(graph);
    EXPECT_EQ(ncclCommDeregister(rank.comm, handle), ncclSuccess);
  });
}

TEST(NcclEmulatorOrder, HasARaceIfTheHostReadsAResultTooEarly) {
  run_threads_of_ranks(kRaceFound, [](TestRank& rank, float* data) {
    rank.all_reduce(data, 1000);
    let_it_run();
    EXPECT_GE(static_cast<volatile float*>(data)[5], 0.0f);
  });
}

TEST(NcclEmulatorOrder, HasARaceIfAnotherStreamDoesNotWait) {
  run_threads_of_ranks(kRaceFound, [](TestRank& rank, float* data) {
    cudaStream_t other = nullptr;
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    rank.all_reduce(data, 1000);
    let_it_run();
    float host[10];
    cudaMemcpyAsync(host, data, sizeof host, cudaMemcpyDefault, other);
    cudaStreamSynchronize(other);
    cudaStreamDestroy(other);
  });
}

int plain_word = 0;

// Rank 1 writes a word before the collective, rank 0 reads it afterwards.
void pass_a_word(TestRank& rank, ncclResult_t (*collective)(TestRank& rank, float* data), float* data) {
  const auto write = [](void*) { plain_word = 1; };
  const auto read = [](void*) { EXPECT_GE(plain_word, 0); };
  if (rank.rank == 1) cudaLaunchHostFunc(rank.stream, write, nullptr);
  EXPECT_EQ(collective(rank, data), ncclSuccess);
  if (rank.rank == 0) cudaLaunchHostFunc(rank.stream, read, nullptr);
}

TEST(NcclEmulatorOrder, OrdersContributorsBeforeReceivers) {
  run_threads_of_ranks(0, [](TestRank& rank, float* data) {
    const auto collective = [](TestRank& of, float* at) { return of.all_reduce(at, 10); };
    pass_a_word(rank, collective, data);
  });
}

TEST(NcclEmulatorOrder, HasARaceIfARankOnlyReceives) {
  run_threads_of_ranks(kRaceFound, [](TestRank& rank, float* data) {
    const auto collective = [](TestRank& of, float* at) {
      return ncclBroadcast(at, at, 10, ncclFloat32, 0, of.comm, of.stream);
    };
    pass_a_word(rank, collective, data);
  });
}

// Rank 0 sends and rank 1 receives.
ncclResult_t send_one_way(TestRank& of, float* at) {
  return of.rank == 0 ? ncclSend(at, 10, ncclFloat32, 1, of.comm, of.stream)
                      : ncclRecv(at, 10, ncclFloat32, 0, of.comm, of.stream);
}

TEST(NcclEmulatorOrder, HasARaceFromTheReceiverToTheSender) {
  run_threads_of_ranks(kRaceFound,
                       [](TestRank& rank, float* data) { pass_a_word(rank, send_one_way, data); });
}

TEST(NcclEmulatorOrder, OrdersTheSenderBeforeTheReceiver) {
  run_threads_of_ranks(0, [](TestRank& rank, float* data) {
    const auto back = [](TestRank& of, float* at) {
      return of.rank == 1 ? ncclSend(at, 10, ncclFloat32, 0, of.comm, of.stream)
                          : ncclRecv(at, 10, ncclFloat32, 1, of.comm, of.stream);
    };
    pass_a_word(rank, back, data);
  });
}

TEST(NcclEmulatorOrder, HasARaceIfThreadsShareACommunicator) {
  run_threads_of_ranks(kRaceFound, [](TestRank& rank, float* data) {
    std::thread other([&] { EXPECT_EQ(rank.all_reduce(data, 10), ncclSuccess); });
    EXPECT_EQ(rank.all_reduce(data + 100, 10), ncclSuccess);
    other.join();
  });
}

}  // namespace
}  // namespace lockstep
