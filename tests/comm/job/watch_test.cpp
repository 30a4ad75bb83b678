// SPDX-License-Identifier: Apache-2.0
#include "comm/job/watch.h"

#include <future>

#include <gtest/gtest.h>

#include "core/error.h"

namespace lockstep {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

TEST(Watch, ChecksUntilTheFirstFailure) {
  int asked = 0;
  std::promise<void> found;
  {
    const Watch watch(milliseconds(1), [&] {
      if (++asked < 3) return true;
      found.set_value();  // throws at the second call
      return false;
    });
    found.get_future().wait();
  }
  EXPECT_EQ(asked, 3);
}

TEST(Watch, EndsWithoutWaitingForTheInterval) {
  bool asked = false;
  {
    const Watch watch(hours(24), [&] { return asked = true; });
  }
  EXPECT_FALSE(asked);
}

TEST(Watch, RunsWithTheRankOfItsCreator) {
  std::promise<int> rank;
  const RankScope scope(7);
  const Watch watch(milliseconds(1), [&] {
    rank.set_value(current_rank());
    return false;
  });
  EXPECT_EQ(rank.get_future().get(), 7);
}

}  // namespace
}  // namespace lockstep
