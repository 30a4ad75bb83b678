// SPDX-License-Identifier: Apache-2.0
//
// The ranks that the watchdog blames, how ranks connect to each other, and that it ends a job of threads.
// tests/launch/program/rank_failure_test.cpp tests real jobs that hang.
#include "comm/watchdog/watchdog.h"

#include <functional>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "comm/agreement.h"
#include "core/error.h"
#include "tests/comm/thread_ranks.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kBeat{100};

// All ranks have waited in the same sum for two seconds, which is the limit.
std::vector<WatchedRank> waiting_ranks(int count) {
  std::vector<WatchedRank> ranks;
  for (int rank = 0; rank < count; ++rank) {
    ranks.push_back({.status = {.rank = rank,
                                .process = 100 + rank,
                                .step = 7,
                                .patience_ms = 2000,
                                .waited_ms = 2000,
                                .overdue = true,
                                .host = rank < 2 ? "node0" : "node1",
                                .waits_in = "all_reduce 9 of 64 fp32 (sum, bucket 1)",
                                .last = "all_reduce 8 of 64 fp32 (sum, bucket 0)"},
                     .silent = kBeat,
                     .heard = true});
  }
  return ranks;
}

TEST(Verdict, BlamesASilentRankAndAsksItsNeighbour) {
  std::vector<WatchedRank> ranks = waiting_ranks(4);
  ranks[1].silent = milliseconds(1990);
  ranks[1].status.overdue = false;
  ranks[1].status.waits_in.clear();
  ASSERT_TRUE(needs_verdict(ranks));
  const Verdict verdict = judge(ranks, kBeat);
  EXPECT_EQ(verdict.to_blame, std::vector<int>{1});
  expect_parts(lines_naming(verdict.text, "rank 1"),
               {"process 101", "node0", "2.0 s", "step 7", "all_reduce 8 of 64 fp32 (sum, bucket 0)"});
  expect_parts(lines_naming(verdict.text, "all_reduce 9 of 64 fp32 (sum, bucket 1)"), {"0, 2, 3", "2.0 s"});
  ASSERT_EQ(verdict.witnesses.size(), 1u);
  EXPECT_EQ(verdict.witnesses[0].of, 1);
  EXPECT_EQ(verdict.witnesses[0].rank, 0);
  EXPECT_EQ(verdict.ask, std::vector<int>{0});
}

// A heartbeat is older than the rank's last step.
TEST(Verdict, PlaceOfALostRankIsThatOfItsLastHeartbeat) {
  std::vector<WatchedRank> ranks = waiting_ranks(2);
  expect_parts(describe_dead(ranks[1]), {"rank 1 ", "process 101", "dead", "heartbeat", "step 7"});
  ranks[1].silent = milliseconds(1990);
  expect_parts(lines_naming(judge(ranks, kBeat).text, "rank 1"), {"heartbeat", "step 7"});
}

TEST(Verdict, ProcessOnAnotherMachineHasNoWitness) {
  std::vector<WatchedRank> ranks = waiting_ranks(3);
  ranks[2].silent = milliseconds(1500);
  const Verdict verdict = judge(ranks, kBeat);
  EXPECT_EQ(verdict.to_blame, std::vector<int>{2});
  ASSERT_EQ(verdict.witnesses.size(), 1u);
  EXPECT_EQ(verdict.witnesses[0].rank, -1);
}

TEST(Verdict, BlamesARankThatEntersNoCollectiveAndNamesItsStep) {
  std::vector<WatchedRank> ranks = waiting_ranks(3);
  ranks[2].status.waits_in.clear();
  ranks[2].status.overdue_text = "its step lasts 2.0 s";
  const Verdict verdict = judge(ranks, kBeat);
  EXPECT_EQ(verdict.to_blame, std::vector<int>{2});
  expect_parts(lines_naming(verdict.text, "rank 2"),
               {"process 102", "node1", "its step lasts 2.0 s", "step 7"});
  EXPECT_EQ(verdict.ask, (std::vector<int>{2, 0}));
  EXPECT_TRUE(verdict.witnesses.empty());
}

TEST(Verdict, BlamesNoRankIfAllWait) {
  std::vector<WatchedRank> ranks = waiting_ranks(3);
  ranks[2].status.waits_in = "all_reduce 9 of 65 fp32 (sum, bucket 1)";
  const Verdict verdict = judge(ranks, kBeat);
  EXPECT_TRUE(verdict.to_blame.empty());
  expect_parts(lines_naming(verdict.text, "all_reduce 9 of 64 "), {"0, 1"});
  expect_parts(lines_naming(verdict.text, "all_reduce 9 of 65 "), {"rank 2"});
}

TEST(Verdict, NamesTheFirstEightOfManyRanks) {
  expect_parts(judge(waiting_ranks(8), kBeat).text, {"ranks 0, 1, 2, 3, 4, 5, 6, 7 wait"});
  expect_parts(judge(waiting_ranks(100), kBeat).text, {"ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more wait"});
}

// Host threads wait for their devices; none waits in a collective.
std::vector<WatchedRank> ranks_of_devices(std::vector<DevicePlace> places) {
  std::vector<WatchedRank> ranks = waiting_ranks(static_cast<int>(places.size()));
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    ranks[rank].status.waits_in.clear();
    ranks[rank].status.waited_ms = 0;
    ranks[rank].status.overdue_text = "its step lasts 2.0 s";
    ranks[rank].status.device = places[rank];
  }
  return ranks;
}

TEST(Verdict, BlamesTheSlowestDevice) {
  const std::vector<WatchedRank> ranks = ranks_of_devices({{6, true}, {6, false}, {7, false}});
  const Verdict verdict = judge(ranks, kBeat);
  EXPECT_EQ(verdict.to_blame, std::vector<int>{1});
  expect_parts(lines_naming(verdict.text, "rank 1"),
               {"process 101", "node0", "its step lasts 2.0 s", "step 6", "backward", "step 7"});
  expect_parts(lines_naming(verdict.text, "rank 0"), {"step 6", "backward"});
  expect_parts(lines_naming(verdict.text, "rank 2"), {"step 7", "backward"});
  EXPECT_EQ(verdict.ask, (std::vector<int>{1, 0})) << "expected the hanging rank and one waiting rank";
  EXPECT_EQ(judge(ranks_of_devices({{6, true}}), kBeat).to_blame, std::vector<int>{0});
}

TEST(Verdict, BlamesNoDeviceIfAllAreAtTheSamePlace) {
  const Verdict verdict = judge(ranks_of_devices({{6, true}, {6, true}}), kBeat);
  EXPECT_TRUE(verdict.to_blame.empty());
  expect_parts(verdict.text, {"step 6", "backward"});
  EXPECT_NE(verdict.text, judge(ranks_of_devices({{6, false}, {6, false}}), kBeat).text)
      << "the text must distinguish the two halves of a step";
}

// Devices on a ring may be at different steps.
TEST(Verdict, DoesNotBlameADeviceThatIsSlowerButNotOverdue) {
  std::vector<WatchedRank> ranks = ranks_of_devices({{6, false}, {9, false}});
  ranks[0].status.overdue = false;
  EXPECT_EQ(judge(ranks, kBeat).to_blame, std::vector<int>{1});
}

TEST(Verdict, IsNeededOnlyForSilentOrDeadRanks) {
  std::vector<WatchedRank> ranks = waiting_ranks(3);
  for (WatchedRank& rank : ranks) rank.status.overdue = false;
  EXPECT_FALSE(needs_verdict(ranks));
  ranks[1].silent = milliseconds(1900);
  EXPECT_FALSE(needs_verdict(ranks)) << "silence of up to two seconds is allowed";
  ranks[1].silent = milliseconds(2000);
  EXPECT_TRUE(needs_verdict(ranks));
  ranks[1].left = true;
  EXPECT_FALSE(needs_verdict(ranks)) << "a rank that has left sends no status";
  ranks[0].dead = true;
  EXPECT_TRUE(needs_verdict(ranks));
}

// A firewall may block the connection of a healthy rank.
TEST(Verdict, IsNotNeededForARankThatWasNeverHeard) {
  std::vector<WatchedRank> ranks = waiting_ranks(3);
  for (WatchedRank& rank : ranks) rank.status.overdue = false;
  ranks[2] = WatchedRank{.status = {.rank = 2}};
  EXPECT_FALSE(needs_verdict(ranks));
  ranks[2].dead = true;
  EXPECT_TRUE(needs_verdict(ranks));
}

TEST(RankStatus, EncodingRoundTrips) {
  const RankStatus status = ranks_of_devices({{5, false}, {6, true}})[1].status;
  const std::string bytes = encode(status);
  EXPECT_EQ(decode_status(bytes), status);
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(decode_status(std::string_view(bytes).substr(0, length))) << length;
  EXPECT_FALSE(decode_status(bytes + "x"));
}

const std::vector<std::string> kLoopbackOnly = {"127.0.0.1"};

// Serves a meeting point on the rank that also connects to it.
class Doorkeeper {
 public:
  explicit Doorkeeper(MeetingPoint& point) : point_(point) {}
  bool serve() {
    for (MeetingPoint::Guest& guest : point_.admit()) {
      rank = guest.rank;
      link = std::move(guest.link);
    }
    return true;
  }
  std::optional<WatchLink> link;
  int rank = -1;

 private:
  MeetingPoint& point_;
};

// Connects as this rank. On a busy machine an attempt may reach its time limit.
WatchLink link_to(const std::string& way, int rank, const std::function<bool()>& meanwhile) {
  std::optional<WatchLink> link;
  while (!link) link = connect_to(way, rank, meanwhile);
  return std::move(*link);
}

TEST(WatchLink, CarriesMessagesInOrderAndCutsThoseAboveOneMebibyte) {
  MeetingPoint point(kLoopbackOnly);
  Doorkeeper door(point);
  std::optional<WatchLink> link = link_to(point.way(), 3, [&] { return door.serve(); });
  ASSERT_TRUE(door.link);
  EXPECT_EQ(door.rank, 3);
  constexpr std::size_t kMost = std::size_t{1} << 20;
  const std::string longer(300'000, 'x');
  link->say(WatchWord::status, "one");
  link->say(WatchWord::evidence, longer);
  link->say(WatchWord::evidence, std::string(2 * kMost, 'y'));
  link->say(WatchWord::goodbye);
  std::vector<WatchMessage> heard;
  while (heard.size() < 4 && !door.link->ended()) {
    link->listen();  // sends the bytes that did not fit before
    for (WatchMessage& message : door.link->listen()) heard.push_back(std::move(message));
  }
  ASSERT_EQ(heard.size(), 4u);
  EXPECT_EQ(heard[0].text, "one");
  EXPECT_EQ(heard[1].text, longer);
  EXPECT_EQ(heard[2].text.size(), kMost);
  EXPECT_EQ(heard[3].word, WatchWord::goodbye);
  link.reset();
  while (!door.link->ended()) door.link->listen();
}

TEST(WatchLink, RefusesAConnectionWithoutTheSecret) {
  MeetingPoint point(kLoopbackOnly);
  Doorkeeper door(point);
  std::string way = point.way();
  way.replace(0, point.secret().size(), std::string(point.secret().size(), '0'));
  EXPECT_FALSE(connect_to(way, 3, [&] { return door.serve(); }));
  EXPECT_EQ(door.rank, -1);
}

TEST(WatchLink, InvalidMessagesEndTheConnection) {
  MeetingPoint point(kLoopbackOnly);
  Doorkeeper door(point);
  WatchLink link = link_to(point.way(), 0, [&] { return door.serve(); });
  ASSERT_TRUE(door.link);
  link.say(static_cast<WatchWord>(77), "?");
  while (!door.link->ended()) door.link->listen();
}

// Rank 2 does not enter the collective that its peers wait in. The watchdog ends the job about two seconds
// after the limit, long before the waits end by themselves (JobState::kWatchdogGrace).
TEST(Watchdog, EndsAJobWhoseRanksWaitTooLong) {
  std::promise<std::string> told;
  const std::shared_future<std::string> report = told.get_future().share();
  try_thread_ranks(3, [&](Communicator& communicator) {
    Watchdog watchdog(communicator, {.silence = std::chrono::seconds(10),
                                     .host = "here",
                                     .end_job = [&](const std::string& text) { told.set_value(text); }});
    communicator.barrier();
    communicator.stream().synchronize();
    communicator.job()->set_timeout(milliseconds(300));
    if (communicator.rank() < 2) {
      float values[8] = {};
      communicator.all_reduce(values, 8, DType::f32, ReduceOp::sum);
      communicator.stream().synchronize();  // throws: rank 2 gives up
      return;
    }
    report.wait();
    communicator.abandon("the test is over");
  });
  const std::string text = report.get();
  expect_parts(lines_naming(text, "all_reduce"), {"8 fp32", "sum"});
}

// The threads of ranks 1 and 2 run no watchdog. Rank 1 drops its first connection, as after a timeout, and
// stays on its second one. Rank 2 ends its only one.
TEST(Watchdog, RankThatConnectsAgainIsNotDead) {
  std::promise<std::string> told;
  const std::shared_future<std::string> report = told.get_future().share();
  run_thread_ranks(3, [&](Communicator& communicator) {
    if (communicator.rank() == 0) {
      const Watchdog watchdog(communicator,
                              {.silence = std::chrono::seconds(1),
                               .host = "here",
                               .end_job = [&](const std::string& text) { told.set_value(text); }});
      return report.wait();
    }
    const std::string way = gather_texts(communicator, "")[0];
    if (communicator.rank() == 2) return report.wait();
    const auto link_of = [&](int rank) { return link_to(way, rank, [] { return true; }); };
    const auto status_of = [](int rank) {
      return encode(
          RankStatus{.rank = rank, .process = 100 + rank, .patience_ms = 3'600'000, .host = "here"});
    };
    link_of(1);
    WatchLink link = link_of(1);
    link_of(2).say(WatchWord::status, status_of(2));
    while (report.wait_for(milliseconds(20)) != std::future_status::ready) {
      link.say(WatchWord::status, status_of(1));
      for (const WatchMessage& message : link.listen())
        if (message.word == WatchWord::ask) link.say(WatchWord::evidence, "no stacks");
    }
  });
  EXPECT_NE(lines_naming(report.get(), "rank 2", "process 102"), "");
  EXPECT_EQ(lines_naming(report.get(), "rank 1", "process 101"), "");
}

TEST(Watchdog, MeasuresTheCurrentStep) {
  run_thread_ranks(1, [](Communicator& communicator) {
    Watchdog watchdog(communicator, {.silence = std::chrono::seconds(1),
                                     .host = "here",
                                     .end_job = [](const std::string& text) { FAIL() << text; }});
    const milliseconds before = watchdog.most_step_time();
    watchdog.set_in_steps(true);
    while (watchdog.most_step_time() <= before) std::this_thread::sleep_for(milliseconds(1));
    watchdog.set_in_steps(false);
    while (watchdog.most_step_time() > before) std::this_thread::sleep_for(milliseconds(1));
  });
}

// The ranks wait for rank 0 most of the time, in sum longer than the limit and the three seconds after which
// the watchdog would end the job, but for each barrier only shortly.
TEST(Watchdog, DoesNotEndAJobThatProgresses) {
  run_thread_ranks(3, [&](Communicator& communicator) {
    communicator.job()->set_timeout(std::chrono::seconds(1));
    Watchdog watchdog(communicator, {.silence = std::chrono::seconds(20),
                                     .host = "here",
                                     .end_job = [](const std::string& text) { FAIL() << text; }});
    for (int i = 0; i < 250; ++i) {
      if (communicator.rank() == 0) std::this_thread::sleep_for(milliseconds(20));
      communicator.barrier();
      communicator.stream().synchronize();
    }
  });
}

}  // namespace
}  // namespace lockstep
