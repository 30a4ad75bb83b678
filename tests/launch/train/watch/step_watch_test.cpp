// SPDX-License-Identifier: Apache-2.0
#include "launch/train/watch/step_watch.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(StepTimeout, FollowsTheLongestStepWithAMinimum) {
  using std::chrono::milliseconds, std::chrono::seconds;
  EXPECT_EQ(step_timeout(milliseconds(10), 2), JobState::kDefaultTimeout) << "too few steps for an estimate";
  EXPECT_EQ(step_timeout(milliseconds(10), 3), seconds(30));
  EXPECT_EQ(step_timeout(milliseconds(1500), 3), seconds(30));
  EXPECT_EQ(step_timeout(seconds(4), 100), seconds(80));
}

}  // namespace
}  // namespace lockstep
