// SPDX-License-Identifier: Apache-2.0
//
// Errors of the emulated NCCL if ranks make different calls, share a device, or die.
#include <chrono>
#include <csignal>
#include <cstdint>
#include <string>
#include <thread>

#include <unistd.h>

#include "tests/cuda_emulator/nccl/segment.h"
#include "tests/cuda_emulator/nccl_ranks.h"

namespace lockstep {
namespace {

std::string last_error() { return ncclGetLastError(nullptr); }

// Waits until `waiting` of the communicator's ranks wait to join.
void wait_for_joining(const ncclUniqueId& id, int ranks, std::uint32_t waiting) {
  const emulator::Segment segment(id, ranks);
  while (segment.meeting().arrived < waiting) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool says(const std::string& words) { return last_error().find(words) != std::string::npos; }

// Expects that the rank's device and communicator are broken.
void expect_broken(TestRank& rank) {
  EXPECT_EQ(rank.wait_for_async_error(), ncclInvalidUsage);
  EXPECT_TRUE(says("rank 0") && says("rank 1")) << last_error();
  EXPECT_NE(rank.synchronize(), cudaSuccess);
  EXPECT_EQ(rank.all_reduce(nullptr, 1), ncclInvalidUsage) << "every later call must fail";
  EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
  rank.comm = nullptr;
}

struct Mistake {
  const char* name;
  void (*call)(TestRank& rank, float* data, float* result);
};

// Memory in a window of the rank's communicator.
float* window_of(TestRank& rank) {
  void* data = nullptr;
  ncclWindow_t window = nullptr;
  EXPECT_EQ(ncclMemAlloc(&data, 4000), ncclSuccess);
  EXPECT_EQ(ncclCommWindowRegister(rank.comm, data, 4000, &window, NCCL_WIN_COLL_SYMMETRIC), ncclSuccess);
  return static_cast<float*>(data);
}

// One operation on each rank, because later ones may report the broken device instead.
const Mistake kMistakes[] = {
    {"Counts",
     [](TestRank& rank, float* data, float*) { rank.all_reduce(data, rank.rank == 0 ? 100 : 101); }},
    {"Types",
     [](TestRank& rank, float* data, float*) {
       const ncclDataType_t type = rank.rank == 0 ? ncclFloat32 : ncclInt32;
       ncclAllReduce(data, data, 100, type, ncclSum, rank.comm, rank.stream);
     }},
    {"Operations",
     [](TestRank& rank, float* data, float*) {
       ncclAllReduce(data, data, 100, ncclFloat32, rank.rank == 0 ? ncclSum : ncclMax, rank.comm,
                     rank.stream);
     }},
    {"Roots", [](TestRank& rank, float* data,
                 float*) { ncclBroadcast(data, data, 100, ncclFloat32, rank.rank, rank.comm, rank.stream); }},
    {"Collectives",
     [](TestRank& rank, float* data, float* result) {
       if (rank.rank == 0) rank.all_reduce(data, 100);
       if (rank.rank == 1) ncclAllGather(data, result, 100, ncclFloat32, rank.comm, rank.stream);
     }},
    {"NumbersOfCalls",
     [](TestRank& rank, float* data, float*) {
       if (rank.rank == 0) rank.all_reduce(data, 0);
       rank.all_reduce(data, 100);
     }},
    {"LengthsOfTransfers",
     [](TestRank& rank, float* data, float* result) {
       ncclGroupStart();
       ncclSend(data, rank.rank == 0 ? 100 : 99, ncclFloat32, 1 - rank.rank, rank.comm, rank.stream);
       ncclRecv(result, 100, ncclFloat32, 1 - rank.rank, rank.comm, rank.stream);
       ncclGroupEnd();
     }},
    {"SendsWithoutAReceive",
     [](TestRank& rank, float* data, float*) {
       ncclSend(data, 100, ncclFloat32, 1 - rank.rank, rank.comm, rank.stream);
     }},
    {"ATransferAndACollective",
     [](TestRank& rank, float* data, float*) {
       if (rank.rank == 0) rank.all_reduce(data, 100);
       if (rank.rank == 1) ncclSend(data, 100, ncclFloat32, 0, rank.comm, rank.stream);
     }},
    {"CapturedOnOneRank",
     [](TestRank& rank, float* data, float*) {
       if (rank.rank == 0) {
         rank.all_reduce(data, 100);
       } else {
         const cudaGraphExec_t graph = rank.capture([&] { rank.all_reduce(data, 100); });
         cudaGraphLaunch(graph, rank.stream);
         cudaGraphExecDestroy(graph);
       }
     }},
    {"RegisteredOnOneRank",
     [](TestRank& rank, float* data, float*) {
       void* handle = nullptr;
       if (rank.rank == 0) ncclCommRegister(rank.comm, data, 400, &handle);
       rank.all_reduce(data, 100);
     }},
    {"InAWindowOnOneRank",
     [](TestRank& rank, float* data, float*) {
       float* window = window_of(rank);
       rank.all_reduce(rank.rank == 0 ? window : data, 100);
     }},
    {"PlacesInWindows",
     [](TestRank& rank, float*, float*) { rank.all_reduce(window_of(rank) + rank.rank, 100); }},
    {"WindowsInAnotherOrder",
     [](TestRank& rank, float*, float*) {
       float* const windows[] = {window_of(rank), window_of(rank)};
       rank.all_reduce(windows[rank.rank], 100);
     }},
};

class NcclMistakes : public testing::TestWithParam<std::tuple<Mistake, RanksAre>> {};

INSTANTIATE_TEST_SUITE_P(All, NcclMistakes,
                         testing::Combine(testing::ValuesIn(kMistakes),
                                          testing::Values(RanksAre::threads, RanksAre::processes)),
                         [](const auto& suite) {
                           const bool threads = std::get<1>(suite.param) == RanksAre::threads;
                           return std::string(std::get<0>(suite.param).name) +
                                  (threads ? "_threads" : "_processes");
                         });

TEST_P(NcclMistakes, AreReportedOnEveryRank) {
  run_ranks(2, {.ranks_are = std::get<1>(GetParam())}, [](Lobby& lobby, int number) {
    TestRank rank(lobby, number, 2);
    float* data = rank.memory(std::vector<float>(200, 1.0f));
    float* result = rank.memory(std::vector<float>(200));
    EXPECT_EQ(rank.all_reduce(data, 200), ncclSuccess);
    EXPECT_EQ(rank.synchronize(), cudaSuccess);
    std::get<0>(GetParam()).call(rank, data, result);
    expect_broken(rank);
  });
}

TEST(NcclEmulatorJoining, RanksMustAgreeOnTheNumberOfRanks) {
  constexpr int kRanks[] = {3, 2};  // as each rank expects
  for (const int last : {0, 1}) {
    run_ranks(2, {}, [&](Lobby& lobby, int number) {
      const ncclUniqueId id = lobby.exchange_id(number, 2);
      ncclComm_t comm = nullptr;
      if (number == last) wait_for_joining(id, kRanks[1 - last], 1);
      EXPECT_EQ(ncclCommInitRank(&comm, kRanks[number], id, number),
                number == last ? ncclInvalidArgument : ncclRemoteError);
      EXPECT_EQ(comm, nullptr);
    });
  }
}

TEST(NcclEmulatorAbort, EndsWaitingOperationsAndIsAnErrorOnPeers) {
  run_ranks(2, {}, [](Lobby& lobby, int number) {
    TestRank rank(lobby, number, 2);
    float* data = rank.memory(std::vector<float>(100, 1.0f));
    if (number == 0) {
      rank.barrier();
      EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
      rank.comm = nullptr;
    } else {
      EXPECT_EQ(rank.all_reduce(data, 100), ncclSuccess);
      EXPECT_EQ(cudaStreamQuery(rank.stream), cudaErrorNotReady);
      EXPECT_EQ(rank.async_error(), ncclSuccess);
      rank.barrier();
      EXPECT_EQ(rank.wait_for_async_error(), ncclRemoteError);
      EXPECT_EQ(cudaStreamQuery(rank.stream), cudaErrorNotReady)
          << "like a kernel, the operation keeps waiting";
      EXPECT_EQ(rank.all_reduce(data, 100), ncclRemoteError);
      EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
      rank.comm = nullptr;
    }
    EXPECT_EQ(rank.synchronize(), cudaSuccess) << "the device must still work";
    EXPECT_EQ(rank.all_reduce(data, 100), ncclInvalidArgument);
  });
}

TEST(NcclEmulatorAbort, DiscardsEnqueuedOperations) {
  run_ranks(1, {}, [](Lobby& lobby, int number) {
    TestRank rank(lobby, number, 1);
    float* data = rank.memory(std::vector<float>(100, 1.0f));
    const auto wait = [](void* at) { static_cast<Lobby*>(at)->barrier(2); };
    EXPECT_EQ(cudaLaunchHostFunc(rank.stream, wait, &lobby), cudaSuccess);
    EXPECT_EQ(rank.all_reduce(data, 100), ncclSuccess);
    EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
    rank.comm = nullptr;
    lobby.barrier(2);
    EXPECT_EQ(rank.synchronize(), cudaSuccess);
  });
}

TEST(NcclEmulatorDestroy, IsAnErrorOnPeersThatNeedTheRank) {
  run_ranks(2, {}, [](Lobby& lobby, int number) {
    TestRank rank(lobby, number, 2);
    float* data = rank.memory(std::vector<float>(100, 1.0f));
    EXPECT_EQ(rank.all_reduce(data, 100), ncclSuccess);
    if (number == 0) return;  // the destructor destroys the communicator after its operation
    EXPECT_EQ(rank.all_reduce(data, 100), ncclSuccess);
    EXPECT_EQ(rank.wait_for_async_error(), ncclRemoteError);
    EXPECT_TRUE(says("destroyed")) << last_error();
    EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
    rank.comm = nullptr;
  });
}

TEST(NcclEmulatorLostPeer, TheOthersContinueAfterShrinking) {
  run_ranks(3, {.killed_rank = 1}, [](Lobby& lobby, int number) {
    TestRank rank(lobby, number, 3);
    float* data = rank.memory(std::vector<float>(100, 1.0f));
    rank.barrier();
    if (number == 1) raise(SIGKILL);
    EXPECT_EQ(rank.all_reduce(data, 100), ncclSuccess);
    EXPECT_EQ(rank.wait_for_async_error(), ncclRemoteError);
    int lost[] = {1};
    ncclComm_t rest = nullptr;
    ASSERT_EQ(ncclCommShrink(rank.comm, lost, 1, &rest, nullptr, NCCL_SHRINK_ABORT), ncclSuccess);
    EXPECT_EQ(rank.synchronize(), cudaSuccess) << "the parent's sum must have ended";
    float* again = rank.memory(std::vector<float>(100, 1.0f));
    EXPECT_EQ(ncclAllReduce(again, again, 100, ncclFloat32, ncclSum, rest, rank.stream), ncclSuccess);
    EXPECT_EQ(rank.read(again, 1)[0], 2.0f);
    EXPECT_EQ(ncclCommDestroy(rest), ncclSuccess);
    EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
    rank.comm = nullptr;
  });
}

TEST(NcclEmulatorLostPeer, IsAnAsynchronousErrorOfWaitingWork) {
  run_ranks(3, {.killed_rank = 2}, [](Lobby& lobby, int number) {
    TestRank rank(lobby, number, 3);
    float* data = rank.memory(std::vector<float>(100, 1.0f));
    EXPECT_EQ(rank.all_reduce(data, 100), ncclSuccess);
    EXPECT_EQ(rank.synchronize(), cudaSuccess);
    rank.barrier();
    if (number == 2) raise(SIGKILL);
    EXPECT_EQ(rank.all_reduce(data, 100), ncclSuccess);
    EXPECT_EQ(rank.wait_for_async_error(), ncclRemoteError);
    EXPECT_TRUE(says("has lost rank 2")) << last_error();
    EXPECT_EQ(cudaStreamQuery(rank.stream), cudaErrorNotReady);
    lobby.barrier(2);  // no rank aborts before both have checked
    EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
    rank.comm = nullptr;
  });
}

TEST(NcclEmulatorLostPeer, IsAnErrorOfRanksThatWaitToJoin) {
  run_ranks(3, {.killed_rank = 0}, [](Lobby& lobby, int number) {
    const ncclUniqueId id = lobby.exchange_id(number, 3);
    if (number == 1) return;  // and never joins
    if (number == 0) {
      std::thread([id] {
        wait_for_joining(id, 3, 2);
        raise(SIGKILL);
      }).detach();
    }
    ncclComm_t comm = nullptr;
    cudaSetDevice(number);
    EXPECT_EQ(ncclCommInitRank(&comm, 3, id, number), ncclRemoteError);
  });
}

TEST(NcclEmulatorAsyncFault, OccursAfterTheRequestedCollective) {
  const Settings settings = {"LOCKSTEP_EMULATED_NCCL_ASYNC=1/2:2"};
  run_ranks(2, {.settings = settings}, [](Lobby& lobby, int number) {
    TestRank rank(lobby, number, 2);
    float* data = rank.memory(std::vector<float>(100, 1.0f));
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(rank.async_error(), ncclSuccess);
      EXPECT_EQ(rank.all_reduce(data, 100), ncclSuccess);
      EXPECT_EQ(rank.synchronize(), cudaSuccess);
    }
    EXPECT_EQ(rank.async_error(), number == 1 ? ncclSystemError : ncclSuccess);
    if (number == 1) {
      EXPECT_EQ(rank.all_reduce(data, 100), ncclSystemError);
    }
    rank.barrier();
  });
}

TEST(NcclEmulatorMemory, FreeingMemoryOfAnOperationBreaksTheDevice) {
  run_ranks(1, {}, [](Lobby& lobby, int number) {
    TestRank rank(lobby, number, 1);
    void* data = nullptr;
    ASSERT_EQ(cudaMalloc(&data, 400), cudaSuccess);
    const cudaGraphExec_t graph =
        rank.capture([&] { EXPECT_EQ(rank.all_reduce(static_cast<float*>(data), 100), ncclSuccess); });
    ASSERT_EQ(cudaFree(data), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(graph, rank.stream), cudaSuccess);
    EXPECT_NE(rank.synchronize(), cudaSuccess);
    EXPECT_TRUE(says("freed")) << last_error();
    EXPECT_NE(cudaGraphExecDestroy(graph), cudaSuccess) << "the device must be broken";
    ncclCommAbort(rank.comm);
    rank.comm = nullptr;
  });
}

}  // namespace
}  // namespace lockstep
