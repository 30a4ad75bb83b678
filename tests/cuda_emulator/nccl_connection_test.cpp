// SPDX-License-Identifier: Apache-2.0
//
// NcclConnection ends while a recording still holds a collective of its communicator, as after an error.
#include <chrono>
#include <string>
#include <thread>

#include "comm/nccl/communicator.h"
#include "core/stream.h"
#include "tests/cuda_emulator/nccl_ranks.h"

namespace lockstep {
namespace {

TEST(NcclConnection, AbortDoesNotWaitForRecordings) {
  run_ranks(1, {}, [](Lobby& lobby, int number) {
    TestRank rank(lobby, number, 1);
    float* data = rank.memory(std::vector<float>(100));
    const Device device{.kind = DeviceKind::cuda, .index = 0};
    Stream stream(device, StreamUse::communication);
    NcclConnection connection(rank.comm, device);
    std::string reason;
    Recording recording = stream.record_work(
        [&] {
          EXPECT_EQ(ncclAllReduce(data, data, 100, ncclFloat32, ncclSum, rank.comm,
                                  static_cast<cudaStream_t>(stream.native())),
                    ncclSuccess);
        },
        reason);
    ASSERT_FALSE(recording.empty()) << reason;
    connection.abort();
    EXPECT_EQ(connection.get(), nullptr);
    recording = {};
    // NCCL can now finish.
    int count = 0;
    while (ncclCommCount(rank.comm, &count) == ncclSuccess)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    rank.comm = nullptr;
  });
}

}  // namespace
}  // namespace lockstep
