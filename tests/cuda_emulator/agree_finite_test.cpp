// SPDX-License-Identifier: Apache-2.0
//
// All ranks skip the same steps on GPUs, also if their exchanged gradients differ. Ranks are threads with one
// device each.
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "comm/gradients/buckets.h"
#include "comm/nccl/communicator.h"
#include "tests/comm/bucket_parameters.h"
#include "tests/comm/keeps_its_share.h"
#include "tests/comm/thread_ranks.h"

namespace lockstep::agree_finite_test {
namespace {

constexpr int kRanks = 2;

void sleep() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

// A rank's flag in the memory of its device.
struct Flag {
  explicit Flag(Device device) : memory(sizeof(std::int32_t), device) {}
  std::int32_t* address() const { return reinterpret_cast<std::int32_t*>(memory.data()); }
  void set(Stream& stream, const std::int32_t& value) const {
    stream.copy(memory.data(), &value, sizeof(value));
  }
  std::int32_t get(Stream& stream) const {
    std::int32_t value = -1;
    stream.copy(&value, memory.data(), sizeof(value));
    stream.synchronize();
    return value;
  }
  Buffer memory;
};

using Body = std::function<void(int rank, GradientBuckets&, Stream& compute, Stream& communication)>;

void on_gpus(const Body& body) {
  run_thread_ranks(kRanks, [&](Communicator& host) {
    const Device device{.kind = DeviceKind::cuda, .index = host.rank()};
    NcclCommunicator nccl(device, host, {}, [](const std::string& reason) { ADD_FAILURE() << reason; });
    std::vector<Parameter> parameters = parameters_of({1000, 16});
    GradientBuckets buckets(parameters, nccl, {.exchange = {.kind = &kKeepsItsShare}});
    Stream compute(device, StreamUse::compute);
    body(host.rank(), buckets, compute, nccl.stream());
    compute.synchronize();
    nccl.stream().synchronize();
  });
}

// The agreement waits for the check of gradients, and readers of the flag wait for the agreement.
TEST(AgreeFinite, AllRanksSkipAStepThatOverflowsOnOneRankForAnyDelay) {
  for (const bool compute_is_late : {true, false}) {
    on_gpus([=](int rank, GradientBuckets& buckets, Stream& compute, Stream& communication) {
      const Flag flag(compute.device());
      const std::int32_t both = 1, found = rank == 0 ? 0 : 1;
      flag.set(compute, both);
      compute.synchronize();
      (compute_is_late ? compute : communication).enqueue([] { sleep(); });
      flag.set(compute, found);
      buckets.agree_finite(compute, flag.address());
      EXPECT_EQ(flag.get(compute), 0)
          << "rank " << rank << (compute_is_late ? ", late check" : ", late agreement");
    });
  }
}

TEST(AgreeFinite, IsRecordedAndReplayedWithTheStep) {
  on_gpus([](int rank, GradientBuckets& buckets, Stream& compute, Stream&) {
    const Flag flag(compute.device());
    std::string reason;
    Recording step = compute.record_work(
        [&] {
          buckets.begin(compute);
          buckets.gradient_ready(0);
          buckets.gradient_ready(1);
          buckets.wait(compute);
          buckets.agree_finite(compute, flag.address());
        },
        reason);
    ASSERT_FALSE(step.empty()) << reason;
    for (const int unlucky : {-1, 0, 1}) {
      const std::int32_t found = rank == unlucky ? 0 : 1;
      flag.set(compute, found);
      compute.replay(step);
      EXPECT_EQ(flag.get(compute), unlucky < 0 ? 1 : 0) << "rank " << rank;
    }
  });
}

}  // namespace
}  // namespace lockstep::agree_finite_test
