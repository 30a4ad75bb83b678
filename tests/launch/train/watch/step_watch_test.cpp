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
  StepLimit limit;
  limit.begin(10 * kSecondNs);
  limit.step_done({.ns = 12 * kSecondNs});
  limit.step_done({.ns = 16 * kSecondNs});
  EXPECT_EQ(limit.timeout(), JobState::kDefaultTimeout);
  for (std::int64_t second = 18; second < 2000; second += 2) limit.step_done({.ns = second * kSecondNs});
  EXPECT_EQ(limit.timeout(), std::chrono::seconds(80)) << "20 times the second step";
  limit.begin(5000 * kSecondNs);  // after an evaluation
  limit.step_done({.ns = 5001 * kSecondNs});
  EXPECT_EQ(limit.timeout(), std::chrono::seconds(80));
}

TEST(StepLimit, AllowsTheStepsThatRanksTakeApart) {
  constexpr std::int64_t kSecondNs = 1'000'000'000;
  StepLimit limit;
  std::int64_t second = 0;
  const auto take_steps = [&](int steps, std::int64_t seconds, bool ranks_met) {
    for (int i = 0; i < steps; ++i) {
      limit.begin(second * kSecondNs);
      second += seconds;
      limit.step_done({.ns = second * kSecondNs, .ranks_met = ranks_met});
    }
  };
  take_steps(5, 4, true);
  EXPECT_EQ(limit.timeout(), std::chrono::seconds(80)) << "synchronous steps before the first local one";
  take_steps(2, 4, false);
  EXPECT_EQ(limit.timeout(), JobState::kDefaultTimeout) << "peers may have all local steps left";
  take_steps(1, 4, true);
  take_steps(99, 4, false);
  EXPECT_EQ(limit.timeout(), JobState::kDefaultTimeout) << "the first average followed a part of the steps";
  take_steps(1, 4, true);
  EXPECT_EQ(limit.timeout(), JobState::kDefaultTimeout) << "a GPU has only enqueued the average";
  take_steps(1, 30, false);
  EXPECT_EQ(limit.timeout(), std::chrono::seconds(600)) << "20 times the wait for the average";
  take_steps(98, 4, false);
  take_steps(1, 20, true);
  EXPECT_EQ(limit.timeout(), std::chrono::seconds(600));
}

}  // namespace
}  // namespace lockstep
