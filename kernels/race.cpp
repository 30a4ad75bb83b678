// SPDX-License-Identifier: Apache-2.0
#include "kernels/race.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "core/error.h"

namespace lockstep {
namespace {

// After each round a candidate stays in the race if its shortest call took at most this multiple of the
// leader's. The first call of each candidate includes one-time costs (loading code, address translations).
constexpr double kStays[] = {2.0, 1.25, 1.1, 1.05, 1.05};
// One turn: short calls are repeated up to kMostCalls times or kTurn, because their times vary more.
constexpr double kTurn = 500;  // microseconds
constexpr int kMostCalls = 5;
// The first candidate wins if it takes at most this multiple of the leader's time. A gain below 2 % is within
// the noise of shortest calls: chance would choose, and results would round differently from start to start
// for no gain. The multiple is below the last of kStays, so that no round drops a first candidate
// within it.
constexpr double kTie = 1.02;
static_assert(kTie < kStays[std::size(kStays) - 1]);

}  // namespace

RaceResult race(std::size_t candidates, const std::function<double(std::size_t)>& call) {
  CHECK(candidates > 0);
  std::vector<double> shortest(candidates, std::numeric_limits<double>::infinity());
  std::vector<std::size_t> running(candidates);
  for (std::size_t i = 0; i < candidates; ++i) running[i] = i;
  std::size_t leader = 0;
  for (const double stays : kStays) {
    for (const std::size_t i : running) {
      double turn = 0;
      for (int calls = 0; calls == 0 || (calls < kMostCalls && turn < kTurn); ++calls) {
        const double time = call(i);
        turn += time;
        shortest[i] = std::min(shortest[i], time);
      }
    }
    leader = static_cast<std::size_t>(std::ranges::min_element(shortest) - shortest.begin());
    CHECK(std::isfinite(shortest[leader]), "no candidate can run");
    std::erase_if(running, [&](std::size_t i) { return shortest[i] > stays * shortest[leader]; });
    if (running.size() == 1) break;
  }
  if (shortest[0] <= kTie * shortest[leader]) leader = 0;
  return {.winner = leader,
          .microseconds = shortest[leader],
          .first_microseconds = std::isfinite(shortest[0]) ? shortest[0] : 0};
}

}  // namespace lockstep
