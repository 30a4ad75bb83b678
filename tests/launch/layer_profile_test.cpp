// SPDX-License-Identifier: Apache-2.0
#include "launch/layer_profile.h"

#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// A rank that measured alone would wait for the others for good.
TEST(MeasureTogether, HasAllRanksMeasureAtOnce) {
  constexpr int kRanks = 3;
  const auto hub = make_thread_hub(kRanks);
  std::barrier all_measure(kRanks);
  std::atomic<int> done = 0;
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto communicator = make_thread_communicator(hub, rank);
      const Peak peak = measure_together(*communicator, [&] {
        all_measure.arrive_and_wait();
        ++done;
        return Peak{.gigaflops = 1.0 + rank};
      });
      EXPECT_EQ(done, kRanks) << "rank " << rank << " went on while others measured";
      EXPECT_EQ(peak.gigaflops, 1.0 + rank);
    });
  }
}

}  // namespace
}  // namespace lockstep
