// SPDX-License-Identifier: Apache-2.0
#include "launch/program/setup/bench.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(QuietBuilds, RestoreTheLogLevel) {
  for (const log::Level level : {log::Level::debug, log::Level::warning, log::Level::off}) {
    const log::Level before = log::set_level(level);
    {
      const QuietBuilds quiet;
      const log::Level within = log::set_level(log::Level::error);
      EXPECT_EQ(within, std::max(level, log::Level::error));
      log::set_level(within);
    }
    EXPECT_EQ(log::set_level(before), level);
  }
}

}  // namespace
}  // namespace lockstep
