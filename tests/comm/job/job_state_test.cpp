// SPDX-License-Identifier: Apache-2.0
#include "comm/job/job_state.h"

#include <optional>
#include <thread>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

TEST(JobState, KeepsTheFirstReason) {
  JobState job;
  EXPECT_FALSE(job.abandoned());
  job.abandon("rank 2 hangs");
  job.abandon("rank 0 waited for it");
  EXPECT_TRUE(job.abandoned());
  EXPECT_EQ(job.reason(), "rank 2 hangs");
}

TEST(WaitClock, ExcludesTimeInWhichTheProcessWasStopped) {
  WaitClock clock;
  const JobState::Clock::time_point start = JobState::Clock::now();
  EXPECT_EQ(clock.look(start), milliseconds(0));
  EXPECT_EQ(clock.look(start + milliseconds(300)), milliseconds(300));
  EXPECT_EQ(clock.look(start + hours(5)), milliseconds(1300));
  EXPECT_EQ(clock.look(start + hours(5) + milliseconds(7)), milliseconds(1307));
}

TEST(PeerWait, IsUnlimitedWithoutATimeout) {
  const WaitPlace place{.job = std::make_shared<JobState>()};
  place.job->set_timeout(milliseconds(0));
  PeerWait wait(place, "messages");
  for (int i = 0; i < 3; ++i) EXPECT_NO_THROW(wait.look());
  place.job->abandon("enough");
  EXPECT_THROW(wait.look(), GaveUp);
}

TEST(PeerWait, OverdueWaitStaysReportedWhenAnotherEnds) {
  const WaitPlace place{.job = std::make_shared<JobState>()};
  place.job->set_timeout(milliseconds(1));
  place.job->set_watched(true);
  std::optional<PeerWait> first(std::in_place, place, "messages"), second(std::in_place, place, "a barrier");
  for (int i = 0; i < 2; ++i) {
    first->look();
    second->look();
    std::this_thread::sleep_for(milliseconds(2));
  }
  const auto overdue = [&] { return place.job->overdue().value_or(OverdueWait{}).reason; };
  EXPECT_NE(overdue().find("messages"), std::string::npos) << overdue();
  first.reset();
  EXPECT_NE(overdue().find("a barrier"), std::string::npos) << overdue();
  second.reset();
  EXPECT_EQ(overdue(), "");
}

}  // namespace
}  // namespace lockstep
