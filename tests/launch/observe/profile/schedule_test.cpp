// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/profile/schedule.h"

#include <string>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// One letter for each step: idle, warming up or active; a capital marks the last step of a cycle.
std::string stages(const ProfileSettings& settings, std::int64_t steps) {
  std::string text;
  for (std::int64_t step = 0; step < steps; ++step) {
    const ProfiledStep profiled = profiled_step(settings, step);
    text += profiled.stage == ProfileStage::idle ? '.' : profiled.stage == ProfileStage::warmup ? 'w' : 'a';
    if (profiled.last) text.back() = 'A';
  }
  return text;
}

TEST(ProfileSchedule, RepeatsWaitWarmUpAndActiveSteps) {
  const ProfileSettings settings{.wait = 2, .warmup = 1, .active = 3, .repeat = 2};
  EXPECT_EQ(stages(settings, 20), "..waaA..waaA........");
}

TEST(ProfileSchedule, RepeatsForeverByDefault) {
  const ProfileSettings settings{.wait = 1, .active = 1};
  EXPECT_EQ(stages(settings, 8), ".A.A.A.A");
  EXPECT_EQ(profiled_step(settings, 2'000'001).stage, ProfileStage::active);
}

TEST(ProfileSchedule, ZeroActiveStepsDisableIt) {
  EXPECT_EQ(stages({.wait = 1, .warmup = 2, .repeat = 3}, 6), "......");
  EXPECT_EQ(stages({.active = 2}, 4), "aAaA");
}

}  // namespace
}  // namespace lockstep
