// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/account/step_series.h"

#include <cmath>

#include <gtest/gtest.h>

#include "launch/observe/account/busy.h"

namespace lockstep {
namespace {

StepAccount account(double forward, double backward, double rest) {
  StepAccount account;
  account[Phase::forward] = forward;
  account[Phase::backward] = backward;
  account[Phase::rest] = rest;
  return account;
}

TEST(Busy, IsTheComputeShareOfAllTime) {
  StepAccount all = account(2, 3, 1);
  all[Phase::optimizer] = 1;
  all[Phase::data_wait] = all[Phase::exposed_communication] = all[Phase::idle] = 1;
  EXPECT_DOUBLE_EQ(busy_share(all, 0), 0.6);
  EXPECT_DOUBLE_EQ(busy_share(all, 1), 0.5) << "without a core nothing is computed";
  EXPECT_EQ(busy_share(all, 100), 0);
  EXPECT_EQ(busy_share({}, 0), 0) << "no step";
}

// Lines end at multiples of the interval, wherever the epoch was entered, or after one.
TEST(StepSeries, IsDueAtMultiplesOfTheInterval) {
  StepSeries series(10, {.epoch_step = 7});
  EXPECT_FALSE(series.due(9));
  EXPECT_TRUE(series.due(10));
  EXPECT_TRUE(series.due(23)) << "on a ring a rank may skip step 20";
  EXPECT_FALSE(series.open(7));
  EXPECT_TRUE(series.open(8));
  series.take({.epoch_step = 23});
  EXPECT_FALSE(series.due(29));
  EXPECT_TRUE(series.due(30));
  EXPECT_FALSE(series.open(23));
}

TEST(StepSeries, LineCoversTheStepsSinceThePreviousLine) {
  const std::int64_t begin = now_ns();
  StepSeries series(2, {.epoch_step = 4,
                        .samples = 16,
                        .steps = 40,
                        .account = account(1, 2, 1000),
                        .without_core_seconds = 3,
                        .losses = {.loss = 10, .weight = 10}});
  const StepLine line = series.take({.epoch_step = 6,
                                     .samples = 24,
                                     .steps = 43,
                                     .account = account(3, 6, 1002),
                                     .without_core_seconds = 4,
                                     .losses = {.loss = 14, .weight = 18}});
  EXPECT_EQ(line.steps, 3) << "on a ring this rank may take more steps than the mean";
  EXPECT_DOUBLE_EQ(line.loss, 0.5);
  EXPECT_DOUBLE_EQ(line.account[Phase::forward], 2);
  EXPECT_DOUBLE_EQ(line.account[Phase::backward], 4);
  EXPECT_DOUBLE_EQ(line.busy, 5.0 / 8);
  EXPECT_GE(line.samples_per_second, 8e9 / static_cast<double>(now_ns() - begin));
  // A line in which no step was settled.
  EXPECT_TRUE(std::isnan(series.take({.epoch_step = 7, .losses = {.loss = 14, .weight = 18}}).loss));
}

// On a GPU only the phases of steps are known.
TEST(StepSeries, TimeOutsideStepsIsRest) {
  StepSeries series(1, {});
  const std::int64_t begin = now_ns();
  while (now_ns() - begin < 2'000'000) continue;
  const StepLine line = series.take({.epoch_step = 1, .account = account(0.001, 0, 0)});
  EXPECT_DOUBLE_EQ(line.account[Phase::forward], 0.001);
  EXPECT_GE(line.account[Phase::rest], 0.001);
}

}  // namespace
}  // namespace lockstep
