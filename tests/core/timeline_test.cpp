// SPDX-License-Identifier: Apache-2.0
#include "core/timeline.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/core/file_size_limit.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

class TraceTest : public testing::Test {
 protected:
  nlohmann::json trace(const Timeline& timeline, int rank = 0) {
    timeline.write_chrome_trace(path_, rank);
    std::ifstream file(path_);
    return nlohmann::json::parse(file);
  }
  static std::vector<nlohmann::json> spans_of(const nlohmann::json& trace) {
    std::vector<nlohmann::json> spans;
    for (const auto& event : trace.at("traceEvents")) {
      if (event.at("ph") == "X") spans.push_back(event);
    }
    return spans;
  }

  const TemporaryFolder folder_{"trace"};
  const std::filesystem::path path_ = folder_.path() / "trace.json";
};

// Waits for at least this time.
void pass_time(std::int64_t nanoseconds) {
  const std::int64_t end = now_ns() + nanoseconds;
  while (now_ns() < end) {
  }
}

TEST(Timeline, KeepsTheFirstSpansAndCountsTheRest) {
  Timeline timeline(3);
  for (int i = 0; i < 5; ++i) timeline.record({.name = "step", .index = i});
  ASSERT_EQ(timeline.spans().size(), 3u);
  EXPECT_EQ(timeline.spans()[2].index, 2);
  EXPECT_EQ(timeline.dropped(), 2u);
  timeline.clear();
  EXPECT_TRUE(timeline.spans().empty());
  EXPECT_EQ(timeline.dropped(), 0u);
  timeline.record({.name = "step", .index = 9});
  ASSERT_EQ(timeline.spans().size(), 1u);
  EXPECT_EQ(timeline.spans()[0].index, 9);
}

TEST(Timeline, KeepsTheFirstFlowsAndCountsTheRest) {
  Timeline timeline(8);
  for (int i = 0; i < 3; ++i) timeline.record(BucketFlow{.bucket = i});
  EXPECT_EQ(timeline.flows().size(), 2u);
  EXPECT_EQ(timeline.dropped(), 1u);
  timeline.clear();
  EXPECT_EQ(timeline.dropped(), 0u);
}

TEST(Timeline, RecordsNothingWhileRecordingIsOff) {
  Timeline timeline;
  timeline.set_recording(false);
  timeline.record({.name = "step", .index = 1});
  timeline.record(BucketFlow{.bucket = 1});
  EXPECT_TRUE(timeline.spans().empty());
  EXPECT_TRUE(timeline.flows().empty());
  EXPECT_EQ(timeline.dropped(), 0u);
  timeline.set_recording(true);
  timeline.record({.name = "step", .index = 2});
  timeline.record(BucketFlow{.bucket = 2});
  ASSERT_EQ(timeline.spans().size(), 1u);
  EXPECT_EQ(timeline.spans()[0].index, 2);
  EXPECT_EQ(timeline.flows().size(), 1u);
}

TEST(Timeline, RecordsSpansOfManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kEach = 1000;
  Timeline timeline(kThreads * kEach - 100);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&timeline, t] {
      for (int i = 0; i < kEach; ++i) timeline.record({.name = "span", .index = t * kEach + i});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(timeline.dropped(), 100u);
  std::set<int> seen;
  for (const Span& span : timeline.spans()) seen.insert(span.index);
  EXPECT_EQ(seen.size(), timeline.spans().size());  // none lost, none twice
}

TEST_F(TraceTest, HasMicrosecondsFromTheFirstSpan) {
  Timeline timeline;
  timeline.record({.name = "late", .track = Track::compute, .begin_ns = 1'002'500, .end_ns = 1'003'000});
  timeline.record({.name = "first",
                   .track = Track::communication,
                   .index = 4,
                   .begin_ns = 1'000'000,
                   .end_ns = 1'009'001});
  const auto spans = spans_of(trace(timeline, 3));
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].at("name"), "late");
  EXPECT_DOUBLE_EQ(spans[0].at("ts"), 2.5);
  EXPECT_DOUBLE_EQ(spans[0].at("dur"), 0.5);
  EXPECT_DOUBLE_EQ(spans[1].at("ts"), 0.0);
  EXPECT_DOUBLE_EQ(spans[1].at("dur"), 9.001);
  EXPECT_EQ(spans[1].at("args").at("index"), 4);
  EXPECT_EQ(spans[1].at("pid"), 3);
  EXPECT_NE(spans[0].at("tid"), spans[1].at("tid"));
}

TEST_F(TraceTest, ABeginOfZeroNanosecondsIsAValidOrigin) {
  Timeline timeline;
  timeline.record({.name = "zero", .begin_ns = 0, .end_ns = 1000});
  timeline.record({.name = "next", .begin_ns = 5000, .end_ns = 6000});
  const auto spans = spans_of(trace(timeline));
  EXPECT_DOUBLE_EQ(spans[0].at("ts"), 0.0);
  EXPECT_DOUBLE_EQ(spans[1].at("ts"), 5.0);
}

TEST_F(TraceTest, NamesTheRankAndEachTrack) {
  std::map<int, std::string> threads;
  std::string process;
  const nlohmann::json written = trace(Timeline(0), 7);
  for (const auto& event : written.at("traceEvents")) {
    ASSERT_EQ(event.at("ph"), "M");
    EXPECT_EQ(event.at("pid"), 7);
    if (event.at("name") == "process_name") process = event.at("args").at("name");
    if (event.at("name") == "thread_name") threads[event.at("tid")] = event.at("args").at("name");
  }
  EXPECT_EQ(process, "rank 7");
  EXPECT_EQ(threads,
            (std::map<int, std::string>{{0, "step"}, {1, "compute"}, {2, "communication"}, {3, "data"}}));
}

TEST_F(TraceTest, IsValidJsonForAnySpanName) {
  const char* const name = "quote \" backslash \\ newline \n";
  Timeline timeline;
  timeline.record({.name = name});
  timeline.record({.name = "not UTF-8: \xff"});
  const auto spans = spans_of(trace(timeline));
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].at("name"), name);
}

TEST_F(TraceTest, AppendsTheIndexToNumberedNames) {
  Timeline timeline;
  timeline.record({.name = "bucket", .index = 7, .numbered = true});
  timeline.record({.name = "forward", .index = 7});
  const auto spans = spans_of(trace(timeline));
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].at("name"), "bucket 7");
  EXPECT_EQ(spans[1].at("name"), "forward");
}

TEST_F(TraceTest, ReportsTheNumberOfDroppedSpans) {
  Timeline timeline(1);
  for (int i = 0; i < 4; ++i) timeline.record({.name = "step"});
  EXPECT_EQ(trace(timeline).at("droppedSpans"), 3);
}

TEST_F(TraceTest, AFullDiskIsAnIoErrorAndLeavesNoFile) {
  {
    const FileSizeLimit limit(100);
    EXPECT_EQ(message_of<IoError>([&] { Timeline(0).write_chrome_trace(path_, 0); }),
              path_.string() + ": cannot be written: File too large");
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST(PhaseClock, ChargesTheCurrentPhase) {
  constexpr std::int64_t kTime = 200'000;
  PhaseClock clock;
  clock.enter(Phase::forward);
  pass_time(kTime);
  clock.enter(Phase::backward);
  pass_time(kTime);
  clock.enter(Phase::forward);
  pass_time(kTime);
  const StepAccount account = clock.take();
  EXPECT_GE(account[Phase::forward], 2 * kTime * 1e-9);
  EXPECT_GE(account[Phase::backward], kTime * 1e-9);
  EXPECT_EQ(account[Phase::optimizer], 0.0);
}

TEST(PhaseClock, StartsInRestAndStaysInItsPhaseWhenTaken) {
  PhaseClock clock;
  pass_time(10'000);
  EXPECT_GT(clock.take()[Phase::rest], 0.0);
  clock.enter(Phase::optimizer);
  clock.take();
  pass_time(10'000);
  const StepAccount account = clock.take();
  EXPECT_GE(account[Phase::optimizer], 10'000 * 1e-9);
  EXPECT_EQ(account.total(), account[Phase::optimizer]);
}

TEST(PhaseClock, AccountsAddUpToTheWallTime) {
  const std::int64_t before = now_ns();
  PhaseClock clock;
  const std::int64_t made = now_ns();
  double total = 0;
  std::int64_t last = made;
  for (int step = 0; step < 50; ++step) {
    for (const Phase phase : {Phase::data_wait, Phase::forward, Phase::backward, Phase::exposed_communication,
                              Phase::optimizer, Phase::rest}) {
      clock.enter(phase);
      pass_time(1000);
    }
    last = now_ns();
    total += clock.take().total();
  }
  const double rounding = 1e-9;
  EXPECT_GE(total, static_cast<double>(last - made) * 1e-9 - rounding);
  EXPECT_LE(total, static_cast<double>(now_ns() - before) * 1e-9 + rounding);
}

TEST(Names, AreDistinct) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < kPhases; ++i) names.insert(name_of(static_cast<Phase>(i)));
  EXPECT_EQ(names.size(), kPhases);
}

}  // namespace
}  // namespace lockstep
