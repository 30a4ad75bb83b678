// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <latch>
#include <regex>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/comm/thread_ranks.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

void all_reduce_ones(Communicator& communicator, std::size_t count) {
  std::vector<float> ones(count, 1.0f);
  communicator.all_reduce(ones.data(), count, DType::f32, ReduceOp::sum);
  communicator.stream().synchronize();
}

TEST(Threads, PeersOfARankThatEndsThrow) {
  const auto errors = try_thread_ranks(3, [](Communicator& communicator) {
    all_reduce_ones(communicator, 10);
    if (communicator.rank() != 1) all_reduce_ones(communicator, 10);
  });
  EXPECT_EQ(errors[1], "");
  expect_parts(errors[0], {"rank 0", "rank 1", "all_reduce"});
  expect_parts(errors[2], {"rank 2", "rank 1", "all_reduce"});
}

TEST(Threads, PeersOfARankThatThrowsThrow) {
  const auto errors = try_thread_ranks(3, [](Communicator& communicator) {
    if (communicator.rank() == 2) throw std::runtime_error("bad record");
    all_reduce_ones(communicator, 10);
  });
  EXPECT_EQ(errors[2], "bad record");
  EXPECT_NE(errors[0], "");
  EXPECT_NE(errors[1], "");
}

// Rank 0's worker waits in a collective that no peer joins; unwinding must not wait for it.
TEST(Threads, UnwindingDoesNotWaitForACollective) {
  const auto errors = try_thread_ranks(2, [](Communicator& communicator) {
    static float element = 0;
    if (communicator.rank() == 0) {
      communicator.all_reduce(&element, 1, DType::f32, ReduceOp::sum);
      throw std::runtime_error("bad record");
    }
    communicator.stream().synchronize();
  });
  EXPECT_EQ(errors[0], "bad record");
  EXPECT_EQ(errors[1], "");
}

// The error of rank 0, which waits for rank 1. Rank 1 continues when rank 0 no longer waits.
std::string told_without_rank_1(const std::function<void(Communicator&)>& meanwhile) {
  std::latch ended(1);
  return try_thread_ranks(2, [&](Communicator& communicator) {
    if (communicator.rank() == 1) {
      meanwhile(communicator);
      return ended.wait();
    }
    try {
      all_reduce_ones(communicator, 10);
    } catch (const std::exception&) {
      ended.count_down();
      throw;
    }
    ended.count_down();
  })[0];
}

TEST(Threads, AHangingPeerEndsTheWaitWithAnErrorOfPlaceAndTime) {
  const std::string told = told_without_rank_1(
      [](Communicator& communicator) { communicator.job()->set_timeout(std::chrono::milliseconds(100)); });
  std::smatch seconds;
  ASSERT_TRUE(std::regex_search(told, seconds, std::regex(R"((\d[\d.]*) s\b)"))) << told;
  EXPECT_GE(std::stod(seconds[1].str()), 0.1);
  expect_parts(told, {"rank 0", "all_reduce", "10 fp32", "comm.timeout_seconds"});
}

TEST(Threads, PeersReportTheReasonOfARankThatAbandonsTheJob) {
  const std::string told =
      told_without_rank_1([](Communicator& communicator) { communicator.abandon("the disk is full"); });
  expect_parts(told, {"rank 0", "all_reduce", "10 fp32", "the disk is full"});
}

// The caller's thread does the work, so the result is available when the call returns.
TEST(SelfCommunicator, CollectivesAreDoneWhenTheCallReturns) {
  const std::unique_ptr<Communicator> self = make_self_communicator();
  std::thread::id worker;
  self->stream().enqueue([&] { worker = std::this_thread::get_id(); });
  EXPECT_EQ(worker, std::this_thread::get_id());
  float sent[] = {1, 2, 3}, received[3] = {};
  self->all_gather(sent, received, 3, DType::f32);
  EXPECT_EQ(std::vector(received, received + 3), (std::vector<float>{1, 2, 3}));
}

TEST(Threads, AllRanksKnowTheFirstRankWithTheCondition) {
  for (const int size : {1, 2, 5}) {
    for (int from = 0; from < size; ++from) {
      run_thread_ranks(size, [&](Communicator& communicator) {
        EXPECT_EQ(first_rank_where(communicator, communicator.rank() >= from), from);
        EXPECT_EQ(first_rank_where(communicator, communicator.rank() == from), from);
        EXPECT_EQ(first_rank_where(communicator, false), -1);
      });
    }
  }
}

TEST(Threads, EveryRankReportsDifferentCalls) {
  const auto errors = try_thread_ranks(3, [](Communicator& communicator) {
    all_reduce_ones(communicator, communicator.rank() == 1 ? 11 : 10);
  });
  for (const std::string& error : errors) expect_parts(error, {"rank 1", "all_reduce", "10 fp32", "11 fp32"});
}

}  // namespace
}  // namespace lockstep
