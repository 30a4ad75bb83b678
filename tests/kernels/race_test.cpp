// SPDX-License-Identifier: Apache-2.0
#include "kernels/race.h"

#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"

namespace lockstep {
namespace {

// Candidates whose calls take the given times.
struct Track {
  std::vector<double> times;       // microseconds of an undisturbed call
  std::vector<double> first = {};  // added to each candidate's first call
  int disturbed_from = 0;          // calls, of all candidates, ...
  int disturbed_to = 0;            // ... that take five times as long
  std::vector<int> calls = std::vector<int>(times.size());
  int all_calls = 0;

  double operator()(std::size_t i) {
    const int call = all_calls++;
    double time = times[i];
    if (calls[i]++ == 0 && !first.empty()) time += first[i];
    return call >= disturbed_from && call < disturbed_to ? 5 * time : time;
  }
};

TEST(Race, IsWonByTheFastest) {
  Track track{.times = {2000, 1000, 1030, 1200, 9000}};
  const RaceResult result = race(5, std::ref(track));
  EXPECT_EQ(result.winner, 1u);
  EXPECT_EQ(result.microseconds, 1000);
  EXPECT_EQ(result.first_microseconds, 2000);
}

// The candidate at index 0 is the default.
TEST(Race, TheFirstCandidateWinsTies) {
  const auto run = [](std::vector<double> times) {
    const std::size_t candidates = times.size();
    Track track{.times = std::move(times)};
    return race(candidates, std::ref(track));
  };
  const RaceResult tie = run({1015, 1000, 1001});
  EXPECT_EQ(tie.winner, 0u) << "1.5 % faster is not enough";
  EXPECT_EQ(tie.microseconds, 1015) << "the time is that of the winner";
  EXPECT_EQ(run({1000, 1000}).winner, 0u);
  EXPECT_EQ(run({1030, 1000}).winner, 1u) << "3 % faster is enough";
  EXPECT_EQ(run({1100, 1001, 1000}).winner, 2u) << "among the others the fastest wins";
  EXPECT_EQ(run({15.15, 15}).winner, 0u) << "short calls";
}

TEST(Race, StopsCallingSlowCandidates) {
  Track track{.times = {1000, 1020, 1400, 2500}};
  race(4, std::ref(track));
  EXPECT_EQ(track.calls[3], 1) << "more than twice as slow in the first round";
  EXPECT_EQ(track.calls[2], 2) << "a quarter slower after the second round";
  EXPECT_GE(track.calls[0], 4);
  EXPECT_LE(track.all_calls, 13);
}

TEST(Race, EndsWhenOneCandidateRemains) {
  Track track{.times = {1000, 5000}};
  race(2, std::ref(track));
  EXPECT_EQ(track.all_calls, 2);
}

TEST(Race, IgnoresASlowFirstCall) {
  Track track{.times = {1000, 900}, .first = {0, 900}};
  EXPECT_EQ(race(2, std::ref(track)).winner, 1u);
}

// The disturbance covers whole rounds, hence all candidates, or begins after each has had an undisturbed
// call.
TEST(Race, IsNotDecidedByADisturbance) {
  for (int from = 0; from < 8; ++from) {
    for (int length = 1; length <= 8; ++length) {
      const bool whole_rounds = from == 0 && length % 3 == 0;
      if (from < 3 && !whole_rounds) continue;
      Track track{.times = {1000, 800, 950}, .disturbed_from = from, .disturbed_to = from + length};
      EXPECT_EQ(race(3, std::ref(track)).winner, 1u) << "calls " << from << " to " << from + length;
    }
  }
}

TEST(Race, RepeatsShortCalls) {
  Track track{.times = {10, 11}};
  race(2, std::ref(track));
  EXPECT_GE(track.calls[0], 10);
  EXPECT_LE(track.all_calls, 100);
}

TEST(Race, CandidatesThatCannotRunDoNotWin) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  Track track{.times = {kNever, 1000, kNever}};
  const RaceResult result = race(3, std::ref(track));
  EXPECT_EQ(result.winner, 1u);
  EXPECT_EQ(result.first_microseconds, 0) << "an infinite time has no JSON text";
  Track none{.times = {kNever, kNever}};
  EXPECT_THROW(race(2, std::ref(none)), Error);
}

}  // namespace
}  // namespace lockstep
