// SPDX-License-Identifier: Apache-2.0
#include <latch>
#include <stdexcept>

#include <gtest/gtest.h>

#include "comm/gradients/buckets.h"
#include "tests/comm/bucket_parameters.h"
#include "tests/comm/thread_ranks.h"

namespace lockstep {
namespace {

constexpr std::int64_t kLarge = std::int64_t{1} << 20;  // elements: memory that is unmapped when it is freed

// Rank 0 throws while its sum waits for rank 1, which joins only after rank 0's gradients are freed. The sum
// must end before that: it would access freed memory.
TEST(GradientBuckets, AnExceptionEndsPendingSumsBeforeTheirMemoryIsFreed) {
  std::latch gone(1);
  std::latch through(1);
  const auto errors = try_thread_ranks(2, [&](Communicator& communicator) {
    const bool throws = communicator.rank() == 0;
    try {
      std::vector<Parameter> parameters = parameters_of({kLarge, 16});
      GradientBuckets buckets(parameters, communicator, {});
      Stream stream(Device{}, StreamUse::compute);
      if (!throws) gone.wait();
      buckets.begin(stream);
      buckets.gradient_ready(0);  // fills the first bucket, which is sent
      if (throws) throw std::runtime_error("a user's mistake");
      buckets.gradient_ready(1);
      buckets.wait(stream);
    } catch (const std::exception&) {
      throws ? gone.count_down() : through.count_down();
      if (throws) through.wait();
      throw;
    }
    through.count_down();
  });
  EXPECT_EQ(errors[0], "a user's mistake");
  EXPECT_NE(errors[1].find("rank 0"), std::string::npos) << errors[1];
}

// Without a pending sum nothing is abandoned: the code that catches the exception can continue.
TEST(GradientBuckets, AnExceptionBetweenPassesLeavesTheCommunicatorUsable) {
  run_thread_ranks(2, [](Communicator& communicator) {
    try {
      std::vector<Parameter> parameters = parameters_of({100, 16});
      GradientBuckets buckets(parameters, communicator, {});
      Stream stream(Device{}, StreamUse::compute);
      buckets.begin(stream);
      buckets.gradient_ready(0);
      buckets.gradient_ready(1);
      buckets.wait(stream);
      throw std::runtime_error("a user's mistake");
    } catch (const std::runtime_error&) {
    }
    float one = 1;
    communicator.all_reduce(&one, 1, DType::f32, ReduceOp::sum);
    communicator.stream().synchronize();
    CHECK(one == 2);
  });
}

}  // namespace
}  // namespace lockstep
