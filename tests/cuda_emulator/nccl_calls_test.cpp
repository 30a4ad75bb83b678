// SPDX-License-Identifier: Apache-2.0
//
// Calls that the emulated NCCL refuses at once, and its queries. One rank is enough.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "tests/cuda_emulator/nccl_ranks.h"
#include "tests/cuda_emulator/runtime/runtime.h"

namespace lockstep {
namespace {

void alone(const std::function<void(TestRank&)>& body, Settings settings = {}) {
  run_ranks(1, {.settings = std::move(settings)}, [&](Lobby& lobby, int number) {
    TestRank rank(lobby, number, 1);
    body(rank);
  });
}

TEST(NcclEmulatorCalls, InvalidCollectivesAreRefusedAtOnce) {
  alone([](TestRank& rank) {
    const ncclComm_t comm = rank.comm;
    const cudaStream_t stream = rank.stream;
    float* data = rank.memory(std::vector<float>(100));
    std::vector<float> host(100);
    EXPECT_EQ(ncclAllReduce(data, data, 100, ncclFloat32, ncclSum, nullptr, stream), ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(nullptr, data, 100, ncclFloat32, ncclSum, comm, stream), ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(host.data(), data, 100, ncclFloat32, ncclSum, comm, stream), ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(data, data, 101, ncclFloat32, ncclSum, comm, stream), ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(data, data + 1, 50, ncclFloat32, ncclSum, comm, stream), ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(data, data, 100, ncclNumTypes, ncclSum, comm, stream), ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(data, data, 100, ncclFloat32, ncclNumOps, comm, stream), ncclInvalidArgument);
    EXPECT_EQ(ncclBroadcast(data, data, 100, ncclFloat32, 1, comm, stream), ncclInvalidArgument);
    EXPECT_EQ(ncclBroadcast(data, data, 100, ncclFloat32, -1, comm, stream), ncclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(nullptr, nullptr, 0, ncclFloat32, ncclSum, comm, stream), ncclSuccess)
        << "an empty collective succeeds";
    EXPECT_EQ(rank.all_reduce(data, 100), ncclSuccess) << "a refused call must not break the communicator";
    EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("root -1"), std::string::npos);
  });
}

TEST(NcclEmulatorCalls, InvalidTransfersAreRefusedWithTheirGroup) {
  alone([](TestRank& rank) {
    float* data = rank.memory(std::vector<float>(200, 1.0f));
    float* host = nullptr;
    const auto send = [&](const float* from, int peer) {
      return ncclSend(from, 100, ncclFloat32, peer, rank.comm, rank.stream);
    };
    const auto receive = [&](float* to) { return ncclRecv(to, 100, ncclFloat32, 0, rank.comm, rank.stream); };
    EXPECT_EQ(send(data, 1), ncclInvalidArgument);
    EXPECT_EQ(send(data, -1), ncclInvalidArgument);
    EXPECT_EQ(send(host, 0), ncclInvalidArgument);
    EXPECT_EQ(receive(data + 101), ncclInvalidArgument) << "beyond the end of the memory";
    EXPECT_EQ(ncclSend(data, 100, ncclFloat32, 0, nullptr, rank.stream), ncclInvalidArgument);

    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(send(data, 0), ncclSuccess);
    EXPECT_EQ(receive(data + 99), ncclInvalidArgument) << "overlaps the sent memory";
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument) << "the whole group is refused";
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(send(data, 0), ncclSuccess);
    EXPECT_EQ(send(data, 0), ncclInvalidUsage) << "not emulated";
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(rank.all_reduce(data, 100), ncclSuccess);
    EXPECT_EQ(send(data, 0), ncclInvalidUsage) << "not emulated";
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);

    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(send(data, 0), ncclSuccess);
    EXPECT_EQ(receive(data + 100), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess) << "the next group must succeed";
    EXPECT_EQ(rank.synchronize(), cudaSuccess);
  });
}

TEST(NcclEmulatorCalls, MemoryOfAnotherDeviceIsRefused) {
  alone([](TestRank& rank) {
    float* data = nullptr;
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&data), 400), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(rank.all_reduce(data, 100), ncclInvalidArgument);
    float* own = rank.memory(std::vector<float>(100));  // on device 1, the current device
    EXPECT_EQ(rank.all_reduce(own, 100), ncclInvalidArgument);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    own = rank.memory(std::vector<float>(100));
    EXPECT_EQ(ncclAllReduce(own, own, 100, ncclFloat32, ncclSum, rank.comm, stream), ncclUnhandledCudaError);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    EXPECT_EQ(cudaFree(data), cudaSuccess);
  });
}

TEST(NcclEmulatorCalls, UnemulatedConfigurationsAreRefused) {
  alone([](TestRank& rank) {
    ncclUniqueId id = {};
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    ncclComm_t comm = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidUsage);
    config.blocking = 1;
    config.maxCTAs = 0;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument);
    config.maxCTAs = NCCL_CONFIG_UNDEF_INT;
    config.minCTAs = 4;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument) << "without maxCTAs";
    config.minCTAs = NCCL_CONFIG_UNDEF_INT;
    config.CTAPolicy = 3;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument);
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 1, nullptr), ncclInvalidArgument);
    config.magic = 0;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument);
    EXPECT_EQ(comm, nullptr);
    config = NCCL_CONFIG_INITIALIZER;
    config.maxCTAs = 2;
    ASSERT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclSuccess);
    EXPECT_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclSystemError)
        << "all ranks of the id have already joined";
    EXPECT_EQ(rank.async_error(), ncclSuccess);
  });
}

TEST(NcclEmulatorCalls, QueriesReportVersionSizeAndRank) {
  alone([](TestRank& rank) {
    int number = -1;
    EXPECT_EQ(ncclGetVersion(&number), ncclSuccess);
    EXPECT_EQ(number, NCCL_VERSION_CODE);
    EXPECT_EQ(ncclCommCount(rank.comm, &number), ncclSuccess);
    EXPECT_EQ(number, 1);
    EXPECT_EQ(ncclCommUserRank(rank.comm, &number), ncclSuccess);
    EXPECT_EQ(number, 0);
    EXPECT_EQ(ncclCommFinalize(rank.comm), ncclSuccess);
    EXPECT_EQ(rank.all_reduce(rank.memory(std::vector<float>(1)), 1), ncclInvalidUsage) << "finalized";
    EXPECT_EQ(ncclCommDestroy(rank.comm), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(rank.comm), ncclInvalidArgument) << "twice";
    EXPECT_EQ(ncclCommCount(rank.comm, &number), ncclInvalidArgument);
    rank.comm = nullptr;
  });
}

TEST(NcclEmulatorCalls, MemoryIsFreedOnceAndAfterDeregistration) {
  alone([](TestRank& rank) {
    void* data = nullptr;
    void* handle = nullptr;
    ASSERT_EQ(ncclMemAlloc(&data, 4000), ncclSuccess);
    ASSERT_EQ(ncclCommRegister(rank.comm, data, 4000, &handle), ncclSuccess);
    EXPECT_EQ(ncclMemFree(data), ncclInvalidUsage) << "registered";
    EXPECT_EQ(ncclCommWindowDeregister(rank.comm, static_cast<ncclWindow_t>(handle)), ncclInvalidArgument)
        << "not a window";
    EXPECT_EQ(ncclCommDeregister(rank.comm, handle), ncclSuccess);
    EXPECT_EQ(ncclCommDeregister(rank.comm, handle), ncclInvalidArgument) << "twice";
    EXPECT_EQ(ncclMemFree(data), ncclSuccess);
    EXPECT_EQ(ncclMemFree(data), ncclInvalidArgument) << "twice";
    EXPECT_EQ(ncclCommRegister(rank.comm, data, 4000, &handle), ncclInvalidArgument) << "freed";
  });
}

TEST(NcclEmulatorCalls, FreeingMemoryDoesNotWaitForTheDevice) {
  alone([](TestRank& rank) {
    void* data = nullptr;
    ASSERT_EQ(ncclMemAlloc(&data, 4000), ncclSuccess);
    const emulator::HeldBack held_back;
    ASSERT_EQ(emulator::enqueue(rank.stream, "work", [] {}), cudaSuccess);
    EXPECT_EQ(ncclMemFree(data), ncclSuccess);
    EXPECT_EQ(cudaStreamQuery(rank.stream), cudaErrorNotReady);
  });
}

std::size_t free_memory() {
  std::size_t available = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&available, &total), cudaSuccess);
  return available;
}

TEST(NcclEmulatorCalls, MemoryIsAllocatedInPiecesOfTwoMebibytes) {
  alone([](TestRank&) {
    void* data = nullptr;
    const std::size_t before = free_memory();
    ASSERT_EQ(ncclMemAlloc(&data, 4000), ncclSuccess);
    EXPECT_EQ(before - free_memory(), std::size_t{2} << 20);
    EXPECT_EQ(ncclMemFree(data), ncclSuccess);
    EXPECT_EQ(free_memory(), before);
  });
}

TEST(NcclEmulatorCalls, ACommunicatorHoldsMemoryUntilItEnds) {
  alone([](TestRank& rank) {
    ncclUniqueId id = {};
    ncclComm_t comm = nullptr;
    for (const auto end : {ncclCommDestroy, ncclCommAbort}) {
      const std::size_t before = free_memory();
      ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
      ASSERT_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
      EXPECT_LT(free_memory(), before);
      EXPECT_EQ(end(comm), ncclSuccess);
      EXPECT_EQ(free_memory(), before);
    }
    EXPECT_EQ(rank.async_error(), ncclSuccess);
  });
}

// Like NCCL's persistent references: no call that ends a communicator returns before its graphs are
// destroyed.
TEST(NcclEmulatorCalls, EndingACommunicatorWaitsForItsGraphs) {
  for (const auto end : {ncclCommDestroy, ncclCommAbort, ncclCommFinalize}) {
    alone([&](TestRank& rank) {
      float* data = rank.memory(std::vector<float>(100));
      const cudaGraphExec_t graph = rank.capture([&] { EXPECT_EQ(rank.all_reduce(data, 100), ncclSuccess); });
      std::atomic<bool> returned{false}, destroyed{false};
      std::thread other([&] {
        const auto told = [] {
          return std::string(ncclGetLastError(nullptr)).find("CUDA graph") != std::string::npos;
        };
        while (!returned && !told()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        destroyed = true;
        EXPECT_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
      });
      EXPECT_EQ(end(rank.comm), ncclSuccess);
      EXPECT_TRUE(destroyed);
      returned = true;
      other.join();
      if (end != ncclCommFinalize) rank.comm = nullptr;
    });
  }
}

TEST(NcclEmulatorCalls, GraphsKeepRegisteredMemoryOfTheirOperations) {
  alone([](TestRank& rank) {
    float* data = rank.memory(std::vector<float>(100));
    void* handle = nullptr;
    ASSERT_EQ(ncclCommRegister(rank.comm, data, 400, &handle), ncclSuccess);
    const cudaGraphExec_t graph = rank.capture([&] { EXPECT_EQ(rank.all_reduce(data, 100), ncclSuccess); });
    EXPECT_EQ(ncclCommDeregister(rank.comm, handle), ncclInvalidUsage);
    EXPECT_EQ(cudaGraphLaunch(graph, rank.stream), cudaSuccess);
    EXPECT_EQ(rank.synchronize(), cudaSuccess) << "the registered memory must still work";
    EXPECT_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
    EXPECT_EQ(ncclCommDeregister(rank.comm, handle), ncclSuccess);

    float* other = rank.memory(std::vector<float>(100));
    ASSERT_EQ(ncclCommRegister(rank.comm, other, 400, &handle), ncclSuccess);
    const cudaGraphExec_t transfers = rank.capture([&] {
      EXPECT_EQ(ncclGroupStart(), ncclSuccess);
      EXPECT_EQ(ncclSend(data, 100, ncclFloat32, 0, rank.comm, rank.stream), ncclSuccess);
      EXPECT_EQ(ncclRecv(other, 100, ncclFloat32, 0, rank.comm, rank.stream), ncclSuccess);
      EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    });
    EXPECT_EQ(ncclCommDeregister(rank.comm, handle), ncclInvalidUsage)
        << "a captured transfer receives into this memory";
    EXPECT_EQ(cudaGraphExecDestroy(transfers), cudaSuccess);
    EXPECT_EQ(ncclCommDeregister(rank.comm, handle), ncclSuccess);
  });
}

TEST(NcclEmulatorCalls, WindowsNeedAlignedMemoryOfNccl) {
  alone([](TestRank& rank) {
    void* data = nullptr;
    ncclWindow_t window = nullptr;
    const auto make = [&](void* begin, int flags) {
      return ncclCommWindowRegister(rank.comm, begin, 400, &window, flags);
    };
    ASSERT_EQ(ncclMemAlloc(&data, 40'000), ncclSuccess);
    EXPECT_EQ(make(rank.memory(std::vector<float>(100)), NCCL_WIN_COLL_SYMMETRIC), ncclInvalidArgument)
        << "cudaMalloc() hides the physical memory";
    EXPECT_EQ(make(static_cast<float*>(data) + 1, NCCL_WIN_COLL_SYMMETRIC), ncclInvalidArgument);
    EXPECT_EQ(make(data, 2), ncclInvalidArgument);
    ASSERT_EQ(make(data, NCCL_WIN_COLL_SYMMETRIC), ncclSuccess);
    EXPECT_EQ(ncclMemFree(data), ncclInvalidUsage) << "registered";
    EXPECT_EQ(rank.all_reduce(static_cast<float*>(data), 100), ncclSuccess);
    EXPECT_EQ(rank.synchronize(), cudaSuccess);
    EXPECT_EQ(ncclCommDeregister(rank.comm, window), ncclInvalidArgument) << "a window";
    EXPECT_EQ(ncclCommWindowDeregister(rank.comm, window), ncclSuccess);
    EXPECT_EQ(ncclCommWindowDeregister(rank.comm, window), ncclInvalidArgument) << "twice";
    ASSERT_EQ(make(rank.memory(std::vector<float>(100)), NCCL_WIN_DEFAULT), ncclSuccess)
        << "a plain registration takes any memory";
    EXPECT_EQ(ncclCommDeregister(rank.comm, window), ncclInvalidArgument) << "a window";
    EXPECT_EQ(ncclCommWindowDeregister(rank.comm, window), ncclSuccess);
    EXPECT_EQ(ncclMemFree(data), ncclSuccess);
  });
}

TEST(NcclEmulatorCalls, FailAsTheEnvironmentRequests) {
  const Settings settings = {"LOCKSTEP_EMULATED_FAULTS=ncclAllReduce:2=1"};
  const auto body = [](TestRank& rank) {
    float* data = rank.memory(std::vector<float>(10));
    EXPECT_EQ(rank.all_reduce(data, 10), ncclSuccess);
    EXPECT_EQ(rank.all_reduce(data, 10), ncclUnhandledCudaError);
    EXPECT_EQ(rank.all_reduce(data, 10), ncclSuccess);
  };
  alone(body, settings);
}

}  // namespace
}  // namespace lockstep
