// SPDX-License-Identifier: Apache-2.0
#include "launch/train/watch/stragglers.h"

#include <chrono>
#include <cstdint>
#include <fstream>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/random.h"
#include "core/system/processor_time.h"
#include "core/timeline.h"
#include "launch/observe/account/busy.h"
#include "launch/train/clock/own_time.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

// Step times of about 20 ms, up to 5 % longer or shorter. Rank 2's are multiplied by `factor`.
std::vector<double> window_of(int number, double factor, std::size_t ranks = 4) {
  const Random random(1, "window " + std::to_string(number));
  std::vector<double> window(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank)
    window[rank] = 0.02 * random.uniform(rank, 0.95f, 1.05f) * (rank == 2 ? factor : 1);
  return window;
}

// The device completes the step while the host works between two steps, for example on a comparison.
TEST(OwnStepTime, DeviceStepThatEndsBetweenStepsCounts) {
  OwnStepTime own;
  own.end({});
  EXPECT_DOUBLE_EQ(own.end({.host = 1, .device = 0}), 1);
  own.resume({.host = 5, .device = 20});
  EXPECT_DOUBLE_EQ(own.end({.host = 6, .device = 20}), 20) << "the host's work between steps does not count";
}

TEST(StragglerScore, NamesASlowRankOnceInItsThirdWindow) {
  StragglerScore score;
  for (int window = 0; window < 50; ++window) {
    const std::vector<Straggler> found =
        score.window(window_of(window, window < 10 ? 1 : 1.5), 1 + 4 * window);
    ASSERT_EQ(found.size(), window == 12 ? 1 : 0) << window;
    if (found.empty()) continue;
    EXPECT_EQ(found[0].rank, 2);
    EXPECT_EQ(found[0].since_step, 41) << "12 steps before the report";
    EXPECT_NEAR(found[0].factor(), 1.5, 0.15);
  }
}

TEST(StragglerScore, EqualRanksAreNotNamed) {
  StragglerScore score;
  for (int window = 0; window < 500; ++window) EXPECT_TRUE(score.window(window_of(window, 1), 1).empty());
}

TEST(StragglerScore, OccasionalSlowWindowsAreNotNamed) {
  StragglerScore score;
  for (int window = 0; window < 60; ++window)
    EXPECT_TRUE(score.window(window_of(window, window % 3 == 2 ? 1 : 5), 1).empty()) << window;
}

TEST(StragglerScore, NamesARankAgainAfterItRecovered) {
  StragglerScore score;
  std::vector<int> told;
  for (int window = 0; window < 16; ++window) {
    // Three slow windows, one fast, three slow, three fast, then slow.
    const bool slow = window != 3 && (window < 7 || window >= 10);
    if (!score.window(window_of(window, slow ? 2 : 1), 1).empty()) told.push_back(window);
  }
  EXPECT_EQ(told, (std::vector{2, 12})) << "one fast window is no recovery";
}

TEST(StragglerScore, IgnoresTinyStepsAndComparesTwoRanksWithTheFaster) {
  StragglerScore tiny, two;
  for (int window = 0; window < 9; ++window) {
    EXPECT_TRUE(tiny.window(std::vector<double>{1e-4, 9e-4}, 1).empty());
    const auto found = two.window(std::vector<double>{0.02, 0.01}, 1);
    ASSERT_EQ(found.size(), window == 2 ? 1 : 0);
    if (window == 2) {
      EXPECT_EQ(found[0].rank, 0);
    }
  }
}

TEST(OwnTime, ExcludesWaits) {
  using std::chrono::milliseconds;
  OwnTime own;
  const std::int64_t begin = now_ns();
  const double without_core = seconds_without_core();
  EXPECT_EQ(own.seconds(), 0);
  std::this_thread::sleep_for(milliseconds(5));
  own.enter(Phase::exposed_communication);
  const std::int64_t wait_began = now_ns();
  std::this_thread::sleep_for(milliseconds(20));
  const std::int64_t wait_ended = now_ns();
  own.enter(Phase::rest);
  std::this_thread::sleep_for(milliseconds(5));
  const double counted = own.seconds();
  EXPECT_GE(counted, 0.0099 - (seconds_without_core() - without_core));
  EXPECT_LE(counted, 1e-9 * static_cast<double>(now_ns() - begin - (wait_ended - wait_began)));
}

// The thread gets no core for 0.5 s in each phase.
TEST(OwnTime, MissingCoresLowerBusyOnlyInCompute) {
  const TemporaryFolder folder("schedstat");
  const std::string file = (folder.path() / "schedstat").string();
  std::int64_t missing_ns = 0;
  const auto miss_a_core = [&](std::int64_t ns) {
    missing_ns += ns;
    std::ofstream(file) << "1 " << missing_ns << " 1\n";
  };
  miss_a_core(7);  // before the first call
  OwnTime own(file);
  own.seconds();
  StepAccount account;
  account[Phase::data_wait] = account[Phase::exposed_communication] = account[Phase::rest] = 1;
  account[Phase::forward] = account[Phase::backward] = account[Phase::optimizer] = 1;
  const auto busy_after = [&](Phase phase) {
    own.enter(phase);
    miss_a_core(500'000'000);
    const double missing = 1e-9 * static_cast<double>(missing_ns - 7);
    return busy_share(account, missing - own.without_core_outside_compute());
  };
  for (const Phase phase : {Phase::data_wait, Phase::exposed_communication, Phase::rest})
    EXPECT_NEAR(busy_after(phase), 3.0 / 6, 1e-9);
  EXPECT_NEAR(busy_after(Phase::forward), 2.5 / 6, 1e-9);
  EXPECT_NEAR(busy_after(Phase::backward), 2.0 / 6, 1e-9);
  EXPECT_NEAR(busy_after(Phase::optimizer), 1.5 / 6, 1e-9);
  EXPECT_NEAR(busy_after(Phase::data_wait), 1.5 / 6, 1e-9);
}

}  // namespace
}  // namespace lockstep
