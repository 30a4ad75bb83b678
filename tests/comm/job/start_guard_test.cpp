// SPDX-License-Identifier: Apache-2.0
#include "comm/job/start_guard.h"

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// MPI_Init adds variables while the guard's thread starts, which moves the environment.
TEST(StartGuard, ItsThreadDoesNotReadTheEnvironmentOfTheProcess) {
  const auto start = [] {
    const StartGuard guard(std::chrono::minutes(1));
    for (int i = 0; i < 200; ++i) setenv(("LOCKSTEP_TEST_" + std::to_string(i)).c_str(), "1", 1);
    std::_Exit(0);
  };
  for (int process = 0; process < 50; ++process) EXPECT_EXIT(start(), testing::ExitedWithCode(0), "");
}

TEST(StartGuard, AnEmptyLimitCountsAsNotSet) {
  EXPECT_EQ(start_limit([](const char*) { return ""; }), start_limit([](const char*) { return nullptr; }));
}

}  // namespace
}  // namespace lockstep
