// SPDX-License-Identifier: Apache-2.0
#include "core/log.h"

#include <algorithm>
#include <functional>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "core/error.h"

namespace lockstep {
namespace {

// What is logged by so many ranks that all do the same.
std::string logged(int ranks, const std::function<void()>& work) {
  testing::internal::CaptureStderr();
  for (int rank = 0; rank < ranks; ++rank) {
    const RankScope scope(rank);
    work();
  }
  return testing::internal::GetCapturedStderr();
}

TEST(Log, EachLineHasItsLevelAndRank) {
  EXPECT_EQ(logged(2, [] { log::warning("{} apples", 3); }),
            "warning [rank 0] 3 apples\nwarning [rank 1] 3 apples\n");
  EXPECT_EQ(logged(2, [] { log::error("gone"); }), "error [rank 0] gone\nerror [rank 1] gone\n");
}

TEST(Log, WhatEveryRankKnowsIsToldOnce) {
  EXPECT_EQ(logged(3, [] { log::info("{} steps", 3); }), "info [rank 0] 3 steps\n");
  EXPECT_EQ(logged(3, [] { log::shared_warning("{} ranks", 3); }), "warning [rank 0] 3 ranks\n");
}

TEST(Log, LinesAreBrokenForATerminalOnly) {
  const auto speak = [] { log::warning("one two  three {}", "four five"); };
  EXPECT_EQ(logged(1, speak), "warning [rank 0] one two  three four five\n");
  log::set_columns(24);
  const std::string broken = logged(1, speak);
  const std::string exact = logged(1, [] { log::warning("sixteen columns"); });
  log::set_columns(0);
  EXPECT_EQ(broken, "warning [rank 0] one two\n    three four five\n");
  EXPECT_EQ(exact, "warning [rank 0] sixteen\n    columns\n");
  EXPECT_EQ(logged(1, speak), "warning [rank 0] one two  three four five\n");
}

}  // namespace
}  // namespace lockstep
