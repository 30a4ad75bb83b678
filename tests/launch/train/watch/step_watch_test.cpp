// SPDX-License-Identifier: Apache-2.0
#include "launch/train/watch/step_watch.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;

TEST(StepTimeout, FollowsTheLongestStepWithAMinimum) {
  using std::chrono::milliseconds, std::chrono::seconds;
  EXPECT_EQ(step_timeout(milliseconds(10), 2), JobState::kDefaultTimeout) << "too few steps for an estimate";
  EXPECT_EQ(step_timeout(milliseconds(10), 3), seconds(30));
  EXPECT_EQ(step_timeout(milliseconds(1500), 3), seconds(30));
  EXPECT_EQ(step_timeout(seconds(4), 100), seconds(80));
}

// On a ring only the first step of an epoch has a begin.
TEST(StepLimit, FollowsTheLongestStepNotTheEpoch) {
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
  take_steps(1, 4, false);
  EXPECT_EQ(limit.timeout(), std::chrono::seconds(800)) << "twice the 400 s from one average to the next";
  take_steps(98, 4, false);
  take_steps(1, 50, true);
  EXPECT_EQ(limit.timeout(), std::chrono::seconds(1000)) << "20 times the wait for the average";
  EXPECT_EQ(limit.timeout_between(), JobState::kDefaultTimeout);

  limit = {};
  take_steps(500, 4, false);
  EXPECT_EQ(limit.timeout(), std::chrono::seconds(4000)) << "a first period of more than half an hour";
  EXPECT_EQ(limit.timeout_between(), std::chrono::seconds(4000)) << "an evaluation within the period";
}

TEST(StepLimit, IgnoresASuspensionShorterThanTheLimit) {
  StepLimit limit;
  std::int64_t ns = 0;
  const auto take_step = [&](std::int64_t seconds, std::int64_t most_seconds) {
    limit.begin(ns);
    ns += seconds * kSecondNs;
    limit.step_done({.ns = ns, .most_ns = most_seconds * kSecondNs});
  };
  for (int step = 0; step < 3; ++step) take_step(1, 4);
  EXPECT_EQ(limit.timeout(), std::chrono::seconds(30));
  take_step(25, 5);
  EXPECT_EQ(limit.timeout(), std::chrono::seconds(30)) << "the process ran for at most 5 s of the 25 s";
  take_step(25, 53);
  EXPECT_EQ(limit.timeout(), std::chrono::seconds(500));
}

TEST(StepLimit, IgnoresTheTimeOfASuspendedStep) {
  constexpr std::int64_t kTenthNs = 100'000'000, kHourNs = 3'600'000'000'000;
  StepLimit limit;
  std::int64_t ns = 0;
  const auto take_step = [&](std::int64_t step_ns, bool ranks_met) {
    limit.begin(ns);
    ns += step_ns;
    limit.step_done({.ns = ns, .ranks_met = ranks_met});
  };
  for (const std::int64_t step_ns : {kTenthNs, kHourNs, kTenthNs}) take_step(step_ns, true);
  EXPECT_EQ(limit.timeout(), JobState::kDefaultTimeout) << "two steps are measured";
  for (const std::int64_t step_ns : {kTenthNs, kHourNs, kTenthNs}) take_step(step_ns, true);
  EXPECT_EQ(limit.timeout(), std::chrono::seconds(30));
  EXPECT_EQ(limit.timeout_between(), JobState::kDefaultTimeout);

  // Two local steps before each average; the wait for it is in the step after it.
  const auto take_period = [&](std::int64_t wait_ns) {
    take_step(wait_ns, false);
    take_step(kTenthNs, false);
    take_step(kTenthNs, true);
  };
  take_period(kTenthNs);
  take_period(kHourNs);
  take_period(kTenthNs);
  EXPECT_EQ(limit.timeout(), JobState::kDefaultTimeout) << "one wait for an average is measured";
  take_period(kTenthNs);
  EXPECT_EQ(limit.timeout(), std::chrono::seconds(30));
  EXPECT_EQ(limit.timeout_between(), JobState::kDefaultTimeout);
}

}  // namespace
}  // namespace lockstep
