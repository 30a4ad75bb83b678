// SPDX-License-Identifier: Apache-2.0
#include "comm/agreement.h"

#include <new>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/comm/agreed_message.h"

namespace lockstep {
namespace {

TEST(RunAgreed, TurnsOtherExceptionsIntoAnAgreedError) {
  const std::string memory = agreed_message(3, exit_code::io, [](Communicator& communicator) {
    run_agreed(communicator, [&] {
      if (communicator.rank() == 1) throw std::bad_alloc();
    });
  });
  EXPECT_EQ(memory, "rank 1: the host is out of memory (std::bad_alloc)");
  const std::string other = agreed_message(3, exit_code::failed, [](Communicator& communicator) {
    run_agreed(communicator, [&] {
      if (communicator.rank() != 1) throw std::runtime_error("odd");
    });
  });
  EXPECT_EQ(other, "ranks 0, 2: odd");
}

TEST(FindDifference, ComparesEachRankWithRankZero) {
  run_thread_ranks(4, [](Communicator& communicator) {
    EXPECT_TRUE(find_difference(communicator, "all").ranks.empty());
    const Difference found = find_difference(communicator, communicator.rank() % 2 == 0 ? "even" : "odd");
    EXPECT_EQ(found.ranks, (std::vector<int>{1, 3}));
    EXPECT_EQ(found.reference, "even");
    EXPECT_EQ(found.text, "odd");
  });
}

}  // namespace
}  // namespace lockstep
