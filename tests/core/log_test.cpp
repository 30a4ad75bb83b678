// SPDX-License-Identifier: Apache-2.0
#include "core/log.h"

#include <algorithm>
#include <functional>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "core/error.h"

namespace lockstep {
namespace {

// The log of `ranks` ranks that all do the same work.
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

TEST(Log, InfoAndSharedWarningsArePrintedByRankZeroOnly) {
  EXPECT_EQ(logged(3, [] { log::info("{} steps", 3); }), "info [rank 0] 3 steps\n");
  EXPECT_EQ(logged(3, [] { log::shared_warning("{} ranks", 3); }), "warning [rank 0] 3 ranks\n");
}

TEST(Log, LinesBelowTheLevelAreDropped) {
  const auto speak = [] {
    log::debug("of no use");
    log::info("of use");
    log::warning("odd");
    log::error("wrong");
  };
  // The default level. This check is first: the log colours lines if its first use writes to a terminal.
  EXPECT_EQ(logged(1, speak), "info [rank 0] of use\nwarning [rank 0] odd\nerror [rank 0] wrong\n");
  const auto lines_at = [&](const char* level) {
    log::set_level(level);
    const std::string lines = logged(1, speak);
    log::set_level("info");
    return std::ranges::count(lines, '\n');
  };
  EXPECT_EQ(lines_at("debug"), 4);
  EXPECT_EQ(lines_at("info"), 3);
  EXPECT_EQ(lines_at("warning"), 2);
  EXPECT_EQ(lines_at("error"), 1);
  EXPECT_THROW(log::set_level("loud"), Error);
}

TEST(Log, AQuietThreadWritesOnlyErrors) {
  const auto speak = [] {
    log::warning("odd");
    log::error("wrong");
  };
  EXPECT_EQ(logged(1,
                   [&] {
                     const log::Quiet quiet;
                     speak();
                   }),
            "error [rank 0] wrong\n");
  EXPECT_EQ(logged(1, speak), "warning [rank 0] odd\nerror [rank 0] wrong\n");
}

TEST(Log, AQuietProcessWritesOnlyErrorsInAllThreads) {
  const auto speak_in_thread = [] {
    std::thread([] {
      log::warning("odd");
      log::error("wrong");
    }).join();
  };
  const std::string all = "warning [rank 0] odd\nerror [rank 0] wrong\n";
  EXPECT_EQ(logged(1,
                   [&] {
                     const log::Quiet quiet(log::Quiet::Scope::process);
                     { const log::Quiet nested(log::Quiet::Scope::process); }
                     speak_in_thread();
                   }),
            "error [rank 0] wrong\n");
  EXPECT_EQ(logged(1, speak_in_thread), all);
  EXPECT_EQ(logged(1,
                   [&] {
                     const log::Quiet quiet;
                     speak_in_thread();
                   }),
            all)
      << "the default scope is the thread";
}

TEST(Log, LinesAreWrappedForATerminalOnly) {
  const auto speak = [] { log::warning("one two  three {}", "four five"); };
  EXPECT_EQ(logged(1, speak), "warning [rank 0] one two  three four five\n");
  log::set_columns(24);
  const std::string broken = logged(1, speak);
  const std::string exact = logged(1, [] { log::warning("sixteen columns"); });
  log::set_columns(0);
  EXPECT_EQ(broken, "\r\x1b[Kwarning [rank 0] one two\n    three four five\n")
      << "clears a progress bar first";
  EXPECT_EQ(exact, "\r\x1b[Kwarning [rank 0] sixteen\n    columns\n");
  EXPECT_EQ(logged(1, speak), "warning [rank 0] one two  three four five\n");
}

}  // namespace
}  // namespace lockstep
