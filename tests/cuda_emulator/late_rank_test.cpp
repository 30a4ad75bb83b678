// SPDX-License-Identifier: Apache-2.0
//
// A rank whose device, or whose host in a call of NCCL, waits for an absent peer ends its job. Ranks are
// threads with one device each.
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "comm/nccl/communicator.h"
#include "core/cuda/check.h"
#include "core/error.h"
#include "tests/comm/thread_ranks.h"
#include "tests/message_of.h"

namespace lockstep::late_rank_test {
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

// The reason with which rank 0 ends the job in `call`. Rank 1 takes part only in what the call exchanges over
// the host (`exchange`), and gives up once rank 0 has given its reason.
std::string told_in_call(const std::function<void(Communicator& nccl)>& call,
                         const std::function<void(Communicator& host)>& exchange) {
  std::promise<std::string> told;
  const std::shared_future<std::string> reason = told.get_future().share();
  const std::vector<std::string> errors = try_thread_ranks(2, [&](Communicator& host) {
    const Device device{.kind = DeviceKind::cuda, .index = host.rank()};
    NcclCommunicator nccl(device, host, {}, [&](const std::string& text) { told.set_value(text); });
    if (host.rank() == 0) {
      call(nccl);
      return;
    }
    exchange(host);
    host.job()->set_timeout(std::chrono::milliseconds(200));
    reason.wait();
    nccl.abandon("the test is over");
  });
  EXPECT_NE(errors[0], "");
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

// NCCL cannot be interrupted here: rank 1 connects in the end, so that the call of rank 0 returns.
TEST(LateRank, EndsTheJobWhileNcclConnects) {
  std::promise<std::string> told;
  const std::shared_future<std::string> reason = told.get_future().share();
  run_thread_ranks(2, [&](Communicator& host) {
    const Device device{.kind = DeviceKind::cuda, .index = host.rank()};
    if (host.rank() == 0) {
      NcclCommunicator nccl(device, host, {}, [&](const std::string& text) { told.set_value(text); });
      return;
    }
    ncclUniqueId id = {};
    host.broadcast(&id, sizeof(id), DType::u8, 0);
    host.stream().synchronize();
    host.job()->set_timeout(std::chrono::milliseconds(200));
    reason.wait();
    open_device(device);
    ncclComm_t late = nullptr;
    ASSERT_EQ(ncclCommInitRank(&late, host.size(), id, host.rank()), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(late), ncclSuccess);
  });
  expect_parts(reason.get(), {"rank 0", "cuda:0", "ncclCommInitRankConfig", "comm.timeout_seconds"});
}

TEST(LateRank, EndsTheJobWhileNcclMakesAGroup) {
  const std::string told = told_in_call([](Communicator& nccl) { nccl.split(0, nccl.rank()); },
                                        [](Communicator& host) { host.split(0, host.rank()); });
  expect_parts(told, {"rank 0", "cuda:0", "ncclCommSplit", "comm.timeout_seconds"});
}

// The exchange over the host: whether all ranks have the memory.
TEST(LateRank, EndsTheJobWhileNcclMakesAWindow) {
  const std::string told = told_in_call([](Communicator& nccl) { nccl.allocate(4000); },
                                        [](Communicator& host) { first_rank_where(host, false); });
  expect_parts(told, {"rank 0", "cuda:0", "ncclCommWindowRegister", "comm.timeout_seconds"});
}

}  // namespace
}  // namespace lockstep::late_rank_test
