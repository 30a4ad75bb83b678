// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/terminal/progress_meter.h"

#include <gtest/gtest.h>

#include "core/system/terminal.h"

namespace lockstep {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

TEST(ProgressMeter, DrawsABarWithRateAndTimeLeft) {
  ProgressMeter meter("packing", "images", {.present = true, .columns = 80}, 0);
  EXPECT_EQ(meter.text(2 * kSecond, 3000, 12000),
            std::string(kClearLine) +
                "packing  [######.....................]  3,000/12,000  1,500 images/s  0:06 left");
}

TEST(ProgressMeter, TerminalUpdatesStartAtOnceAndAreRateLimited) {
  ProgressMeter meter("packing", "images", {.present = true, .columns = 60}, 0);
  EXPECT_NE(meter.text(0, 0, 10), "");
  EXPECT_EQ(meter.text(kSecond / 20, 1, 10), "");
  EXPECT_NE(meter.text(kSecond / 8, 2, 10), "");
}

TEST(ProgressMeter, ShortOperationsPrintNothingWithoutATerminal) {
  ProgressMeter meter("packing", "images", {.present = false}, 0);
  for (std::int64_t tenth = 0; tenth < 100; ++tenth)
    EXPECT_EQ(meter.text(tenth * kSecond / 10, tenth, 100), "");
}

TEST(ProgressMeter, WritesALineEveryTenSecondsWithoutATerminal) {
  ProgressMeter meter("packing", "images", {.present = false}, 0);
  EXPECT_EQ(meter.text(10 * kSecond, 25, 100), "packing  25/100  2.5 images/s  0:30 left\n");
  EXPECT_EQ(meter.text(19 * kSecond, 49, 100), "");
  EXPECT_EQ(meter.text(20 * kSecond, 50, 100), "packing  50/100  2.5 images/s  0:20 left\n");
  ProgressMeter slow("profiling", "steps", {.present = false}, 0);
  EXPECT_EQ(slow.text(100 * kSecond, 4, 8), "profiling  4/8  0.04 steps/s  1:40 left\n");
}

TEST(ProgressMeter, FitsInItsColumns) {
  for (int columns = 1; columns < 100; ++columns) {
    ProgressMeter meter("timing kernels", "kernels", {.present = true, .columns = columns}, 0);
    EXPECT_LT(meter.text(kSecond, 3, 12).size() - std::string(kClearLine).size(),
              static_cast<std::size_t>(columns));
  }
}

TEST(ProgressMeter, OmitsTheRateBeforeTheFirstItem) {
  ProgressMeter meter("packing", "images", {.present = true, .columns = 40}, 0);
  EXPECT_EQ(meter.text(kSecond, 0, 12), std::string(kClearLine) + "packing  [......................]  0/12");
}

}  // namespace
}  // namespace lockstep
