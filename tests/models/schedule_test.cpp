// SPDX-License-Identifier: Apache-2.0
#include "models/schedule.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Schedule, WarmsUpLinearlyThenStaysConstant) {
  const Schedule schedule{.base = 0.4, .total_steps = 100, .warmup_steps = 4};
  EXPECT_DOUBLE_EQ(schedule.at(0), 0.1);
  EXPECT_DOUBLE_EQ(schedule.at(3), 0.4);
  EXPECT_DOUBLE_EQ(schedule.at(4), 0.4);
  EXPECT_DOUBLE_EQ(schedule.at(99), 0.4);
}

TEST(Schedule, DoesNotReachItsRateIfItIsShorterThanTheWarmUp) {
  Schedule schedule{.base = 0.05, .total_steps = 100, .warmup_steps = 469};
  EXPECT_FALSE(schedule.reaches_base());
  EXPECT_DOUBLE_EQ(schedule.at(99), 0.05 * 100 / 469);
  schedule.warmup_steps = 100;
  EXPECT_TRUE(schedule.reaches_base());
  EXPECT_DOUBLE_EQ(schedule.at(99), 0.05);
  EXPECT_TRUE(Schedule{}.reaches_base()) << "no warm-up";
}

TEST(Schedule, StepMultipliesAtMilestones) {
  const Schedule schedule{.kind = schedule_kind("step"), .base = 1.0, .milestones = {10, 20}, .gamma = 0.1};
  EXPECT_DOUBLE_EQ(schedule.at(9), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(10), 0.1);
  EXPECT_NEAR(schedule.at(20), 0.01, 1e-12);
}

TEST(Schedule, CosineEndsAtItsFinalFraction) {
  const Schedule schedule{.kind = schedule_kind("cosine"),
                          .base = 1.0,
                          .total_steps = 110,
                          .warmup_steps = 10,
                          .final_fraction = 0.1};
  EXPECT_DOUBLE_EQ(schedule.at(10), 1.0);
  EXPECT_NEAR(schedule.at(60), 0.55, 1e-12);
  EXPECT_NEAR(schedule.at(110), 0.1, 1e-12);
  EXPECT_NEAR(schedule.at(1000), 0.1, 1e-12);
}

// 74 samples in batches of 8, and data.tail = "carry": epochs begin with steps 0, 9, 18 and 27.
TEST(Schedule, WholeEpochsEndWithTheStepsOfTheLoader) {
  const auto steps_before = [](std::int64_t epoch) { return epoch * 74 / 8; };
  const ScheduleSettings settings{.name = "step", .warmup_epochs = 2, .milestones = {2, 2.5, 3}};
  const Schedule schedule = make_schedule(settings, 4, steps_before);
  EXPECT_EQ(schedule.total_steps, 37);
  EXPECT_EQ(schedule.warmup_steps, 18);
  EXPECT_EQ(schedule.milestones, (std::vector<std::int64_t>{18, 23, 27}));
}

TEST(Schedule, TheRateScalesWithTheGlobalBatchOnRequest) {
  ScheduleSettings settings{.learning_rate = 0.1, .scale_batch = 256};
  EXPECT_EQ(scaled_rate(settings, 1024), 0.1);
  settings.scaling = RateScaling::linear;
  EXPECT_DOUBLE_EQ(scaled_rate(settings, 1024), 0.4);
  EXPECT_DOUBLE_EQ(scaled_rate(settings, 64), 0.025);
  EXPECT_DOUBLE_EQ(scaled_rate(settings, 256), 0.1);
  settings.scaling = RateScaling::root;
  EXPECT_DOUBLE_EQ(scaled_rate(settings, 1024), 0.2);
}

}  // namespace
}  // namespace lockstep
