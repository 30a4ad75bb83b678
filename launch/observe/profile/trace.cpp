// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/profile/trace.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "comm/agreement.h"

namespace lockstep {
namespace {

constexpr std::size_t kRounds = 64;

struct Round {
  std::int64_t begun_ns = 0;
  std::int64_t ended_ns = 0;
};
struct Rounds {
  std::array<Round, kRounds> rounds = {};
  int node = 0;
};

}  // namespace

ClockOffset measure_clock(Communicator& host, int node, const std::function<std::int64_t()>& clock) {
  Rounds mine{.node = node};
  for (Round& round : mine.rounds) {
    std::int32_t nothing = 0;
    round.begun_ns = clock();
    host.all_reduce(&nothing, 1, DType::i32, ReduceOp::max);
    host.stream().synchronize();
    round.ended_ns = clock();
  }
  const std::vector<Rounds> all = gather_values(host, mine);
  const Rounds& zero = all.front();
  ClockOffset offset{.at_ns = mine.rounds.back().ended_ns};
  if (node == zero.node) return offset;
  std::int64_t least = std::numeric_limits<std::int64_t>::min(),
               most = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < kRounds; ++i) {
    least = std::max(least, zero.rounds[i].begun_ns - mine.rounds[i].ended_ns);
    most = std::min(most, zero.rounds[i].ended_ns - mine.rounds[i].begun_ns);
  }
  offset.offset_ns = least + (most - least) / 2;
  offset.error_ns = (most - least + 1) / 2;
  return offset;
}

TraceClock clock_between(const ClockOffset& before, const ClockOffset& after) {
  const std::int64_t mine = after.at_ns - before.at_ns;
  const std::int64_t drift = after.offset_ns - before.offset_ns;
  return {.from_ns = before.at_ns,
          .to_ns = before.at_ns + before.offset_ns,
          .rate = mine > 0 ? 1 + static_cast<double>(drift) / static_cast<double>(mine) : 1};
}

JobTrace trace_of_all(Communicator& host, const Timeline* timeline, const ClockOffset& before,
                      const ClockOffset& after) {
  struct Told {
    ClockOffset before, after;
    std::uint64_t dropped;
  };
  const std::vector<Told> told =
      gather_values(host, Told{before, after, timeline == nullptr ? 0 : timeline->dropped()});
  TraceClock clock = clock_between(before, after);
  clock.to_ns -= told.front().before.at_ns;  // where the trace begins
  const bool first = host.rank() == 0;
  std::string events, clocks;
  std::uint64_t dropped = 0;
  for (int rank = 0; rank < host.size(); ++rank) {
    std::string text =
        rank == host.rank() && timeline != nullptr ? timeline->chrome_events(rank, clock) : std::string();
    if (rank > 0) text = broadcast_text(host, std::move(text), rank);
    if (!first) continue;
    if (!text.empty()) events += (events.empty() ? "" : ",\n") + text;
    const Told& of_rank = told[static_cast<std::size_t>(rank)];
    dropped += of_rank.dropped;
    clocks += fmt::format(R"({}{{"rank":{},"offset_ns":[{},{}],"error_ns":{}}})", rank == 0 ? "" : ",", rank,
                          of_rank.before.offset_ns, of_rank.after.offset_ns,
                          std::max(of_rank.before.error_ns, of_rank.after.error_ns));
  }
  if (!first) return {};
  std::string text = fmt::format(
      R"({{"displayTimeUnit":"ms","droppedSpans":{},"otherData":{{"lockstep":{},"clocks":[{}]}},"traceEvents":[{}]}})"
      "\n",
      dropped, timeline == nullptr ? "null" : timeline->about(), clocks, events);
  return {.text = std::move(text), .dropped = dropped};
}

}  // namespace lockstep
