// SPDX-License-Identifier: Apache-2.0
#include "comm/job/job_state.h"

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

}  // namespace
}  // namespace lockstep
