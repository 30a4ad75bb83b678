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

// On a ring only the first step of an epoch has a begin.
TEST(StepLimit, FollowsTheLongestStepNotTheEpoch) {
  constexpr std::int64_t kSecondNs = 1'000'000'000;
  StepLimit limit(0);
  limit.begin(10 * kSecondNs);
  limit.step_done(12 * kSecondNs);
  limit.step_done(16 * kSecondNs);
  EXPECT_EQ(limit.timeout(), JobState::kDefaultTimeout);
  for (std::int64_t second = 18; second < 2000; second += 2) limit.step_done(second * kSecondNs);
  EXPECT_EQ(limit.timeout(), std::chrono::seconds(80)) << "20 times the second step";
  limit.begin(5000 * kSecondNs);  // after an evaluation
  limit.step_done(5001 * kSecondNs);
  EXPECT_EQ(limit.timeout(), std::chrono::seconds(80));
}

TEST(StepLimit, AllowsTheStepsThatRanksTakeApart) {
  constexpr std::int64_t kSecondNs = 1'000'000'000;
  StepLimit limit(8);
  limit.begin(0);
  for (std::int64_t step = 1; step <= 3; ++step) limit.step_done(4 * step * kSecondNs);
  EXPECT_EQ(limit.timeout(), std::chrono::seconds(80 + 8 * 4));
}

}  // namespace
}  // namespace lockstep
