// SPDX-License-Identifier: Apache-2.0
//
// A rank whose device waits for an absent peer ends its job. Ranks are threads with one device each.
#include <future>

#include <gtest/gtest.h>

#include "comm/nccl/communicator.h"
#include "core/error.h"
#include "tests/comm/thread_ranks.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

// The reason with which rank 0 ends the job when rank 1 does not join the collectives of `work`.
std::string told_by_rank_0(const std::function<void(Communicator&, Stream& compute, Buffer&)>& work) {
  std::promise<std::string> told;
  const std::shared_future<std::string> reason = told.get_future().share();
  run_thread_ranks(2, [&](Communicator& host) {
    const Device device{.kind = DeviceKind::cuda, .index = host.rank()};
    const bool waits = host.rank() == 0;
    NcclCommunicator nccl(device, host, {}, [&](const std::string& text) { told.set_value(text); });
    Stream compute(device, StreamUse::compute);
    Buffer memory = nccl.allocate(4000);
    if (waits) {
      work(nccl, compute, memory);
      host.job()->set_timeout(std::chrono::milliseconds(200));
    }
    reason.wait();
    if (waits) nccl.abandon("the test is over");
  });
  return reason.get();
}

TEST(LateRank, EndsTheJob) {
  const std::string told = told_by_rank_0([](Communicator& nccl, Stream&, Buffer& memory) {
    nccl.all_reduce(memory.data(), 1000, DType::f32, ReduceOp::sum);
  });
  expect_parts(told, {"rank 0", "cuda:0", "all_reduce 1 ", "1000 fp32", "sum", "comm.timeout_seconds"});
}

TEST(LateRank, EndsTheJobOfReplayedSteps) {
  const std::string told = told_by_rank_0([](Communicator& nccl, Stream& compute, Buffer& memory) {
    Event produced(compute.device()), reduced(compute.device());
    std::string reason;
    Recording recording = compute.record_work(
        [&] {
          compute.record(produced);
          nccl.stream().wait(produced);
          nccl.all_reduce(memory.data(), 1000, DType::f32, ReduceOp::sum);
          nccl.stream().record(reduced);
          compute.wait(reduced);
        },
        reason);
    ASSERT_FALSE(recording.empty()) << reason;
    const RecordedCollectives collectives = nccl.take_recorded();
    compute.replay(recording);
    nccl.replayed(collectives, compute);
  });
  expect_parts(told, {"rank 0", "cuda:0", "comm.timeout_seconds"});
}

}  // namespace
}  // namespace lockstep
