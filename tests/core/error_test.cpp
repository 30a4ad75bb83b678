// SPDX-License-Identifier: Apache-2.0
#include "core/error.h"

#include <string>
#include <thread>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

std::string message_of(void (*function)()) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), exit_code::failed);
    return error.what();
  }
  ADD_FAILURE() << "expected an exception";
  return {};
}

TEST(Check, NamesExpressionPlaceRankAndMessage) {
  const RankScope scope(3);
  const std::string message = message_of([] { CHECK(1 + 1 == 3, "{} apples", 2); });
  EXPECT_NE(message.find("CHECK(1 + 1 == 3)"), std::string::npos) << message;
  EXPECT_NE(message.find("error_test.cpp:" + std::to_string(__LINE__ - 2)), std::string::npos) << message;
  EXPECT_NE(message.find("rank 3"), std::string::npos) << message;
  EXPECT_NE(message.find("2 apples"), std::string::npos) << message;
}

TEST(Check, WorksWithoutAMessage) {
  EXPECT_NE(message_of([] { CHECK(false); }).find("CHECK(false)"), std::string::npos);
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
  const std::string message = message_of([] { CHECK(false); });
  EXPECT_NE(message.find("rank 3"), std::string::npos) << message;
  EXPECT_NE(message.find("step 17"), std::string::npos) << message;
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
