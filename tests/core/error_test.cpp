// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"

#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "tests/message_of.h"

namespace lockstep {
namespace {

TEST(Check, NamesExpressionPlaceRankAndMessage) {
  const RankScope scope(3);
  const std::string place = fmt::format("error_test.cpp:{}:", __LINE__ + 1);
  const std::string message = message_of([] { CHECK(1 + 1 == 3, "{} apples", 2); });
  expect_parts(message, {"CHECK(1 + 1 == 3)", place, "rank 3", "2 apples"});
}

TEST(Check, WorksWithoutAMessage) {
  try {
    CHECK(false);
    FAIL() << "expected an exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), exit_code::failed);
    expect_parts(error.what(), {"CHECK(false)"});
  }
}

TEST(Check, EvaluatesTheConditionOnceAndTheMessageOnlyOnFailure) {
  int conditions = 0;
  int messages = 0;
  const auto count = [](int& counter) { return ++counter; };
  CHECK(count(conditions) == 1, "{}", count(messages));
  EXPECT_EQ(conditions, 1);
  EXPECT_EQ(messages, 0);
}

TEST(Error, EachKindHasItsExitCode) {
  EXPECT_EQ(UsageError("").exit_code(), 64);
  EXPECT_EQ(DataError("").exit_code(), 65);
  EXPECT_EQ(IoError("").exit_code(), 74);
  EXPECT_EQ(MemoryError("").exit_code(), 74);
  EXPECT_EQ(ConfigError("").exit_code(), 78);
}

TEST(Error, IsAgreedOnlyAfterSetAgreed) {
  ConfigError error("no such device");
  EXPECT_FALSE(error.agreed());
  error.set_agreed();
  EXPECT_TRUE(error.agreed());
}

TEST(CurrentPlace, NamesTheRankAndDuringAStepTheStep) {
  const RankScope scope(3);
  EXPECT_EQ(current_place(), "rank 3");
  set_current_step(17);
  expect_parts(message_of([] { CHECK(false); }), {"rank 3", "step 17"});
  set_current_step(0);
  EXPECT_EQ(current_place(), "rank 3");
}

TEST(RankScope, NestsAndHoldsForItsThreadOnly) {
  const int process = current_rank();
  {
    const RankScope outer(1);
    {
      const RankScope inner(2);
      EXPECT_EQ(current_rank(), 2);
      int elsewhere = -1;
      std::thread([&elsewhere] { elsewhere = current_rank(); }).join();
      EXPECT_EQ(elsewhere, process);
    }
    EXPECT_EQ(current_rank(), 1);
  }
  EXPECT_EQ(current_rank(), process);
}

}  // namespace
}  // namespace lockstep
