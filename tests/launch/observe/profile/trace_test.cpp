// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/profile/trace.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/comm/thread_ranks.h"

namespace lockstep {
namespace {

// The clock of a rank's node, with a different start and rate.
std::int64_t clock_of(int rank, std::int64_t ns) { return rank == 0 ? ns : 7'000'000'000 + ns + ns / 10'000; }

TEST(ClockOffset, ErrorIsWithinTheReportedBound) {
  std::atomic<std::int64_t> elapsed_ns = 0;  // each reading takes 1 us, on any machine
  run_thread_ranks(2, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    const auto clock = [&] { return clock_of(rank, elapsed_ns += 1000); };
    const ClockOffset before = measure_clock(communicator, rank, clock);
    const std::int64_t ns = elapsed_ns += 1000;
    const ClockOffset after = measure_clock(communicator, rank, clock);
    const TraceClock traced = clock_between(before, after);
    // 100 ns: the clocks drift apart by 51 ns in these 514 us.
    EXPECT_NEAR(static_cast<double>(traced(clock_of(rank, ns))), static_cast<double>(ns),
                static_cast<double>(std::max(before.error_ns, after.error_ns) + 100))
        << "rank " << rank;
    EXPECT_EQ(before.error_ns > 0, rank == 1);
  });
}

TEST(ClockOffset, IsZeroWithinANode) {
  run_thread_ranks(2, [](Communicator& communicator) {
    const ClockOffset offset = measure_clock(communicator, 0);
    EXPECT_EQ(offset.offset_ns, 0);
    EXPECT_EQ(offset.error_ns, 0);
  });
}

TEST(Trace, AllRanksShareOneClock) {
  run_thread_ranks(3, [](Communicator& communicator) {
    const int rank = communicator.rank();
    Timeline timeline;
    const std::int64_t ahead = rank * 1'000'000;  // this rank's clock is late by this much
    timeline.record({.name = "together", .begin_ns = 5'000'000 - ahead, .end_ns = 6'000'000 - ahead});
    const ClockOffset before{.at_ns = 4'000'000 - ahead, .offset_ns = ahead, .error_ns = rank * 10};
    const JobTrace all = trace_of_all(communicator, rank == 2 ? nullptr : &timeline, before, before);
    EXPECT_EQ(all.dropped, 0u);
    if (rank > 0) {
      EXPECT_EQ(all.text, "");
      return;
    }
    const nlohmann::json trace = nlohmann::json::parse(all.text);
    std::vector<int> ranks;
    for (const nlohmann::json& event : trace.at("traceEvents")) {
      if (event["ph"] != "X") continue;
      ranks.push_back(event["pid"]);
      EXPECT_DOUBLE_EQ(event["ts"], 1000);
      EXPECT_DOUBLE_EQ(event["dur"], 1000);
    }
    EXPECT_EQ(ranks, (std::vector<int>{0, 1}));
    EXPECT_EQ(trace["otherData"]["clocks"][1],
              nlohmann::json::parse(R"({"rank": 1, "offset_ns": [1000000, 1000000], "error_ns": 10})"));
  });
}

TEST(Trace, CountsTheDroppedSpansOfAllRanks) {
  run_thread_ranks(2, [](Communicator& communicator) {
    Timeline timeline(1);
    for (int i = 0; i < 2 + communicator.rank(); ++i) timeline.record({.name = "step", .index = i});
    const JobTrace all = trace_of_all(communicator, &timeline, {}, {});
    if (communicator.rank() > 0) return;
    EXPECT_EQ(all.dropped, 3u);
    EXPECT_EQ(nlohmann::json::parse(all.text).at("droppedSpans"), 3);
  });
}

}  // namespace
}  // namespace lockstep
