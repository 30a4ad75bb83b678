// SPDX-License-Identifier: Apache-2.0
#include "comm/watchdog/verdict.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "core/text/text.h"

namespace lockstep {
namespace {

using Milliseconds = std::chrono::milliseconds;

double in_seconds(std::int64_t milliseconds) { return 1e-3 * static_cast<double>(milliseconds); }

// When its peers have waited too long, a rank that was silent for a quarter of its patience is to blame.
bool is_silent(const WatchedRank& rank, Milliseconds interval) {
  return !rank.left && rank.silent >= std::max(5 * interval, Milliseconds(rank.status.patience_ms / 4));
}

// True if the rank has waited in a collective for half of its patience: it is where its peers expect it.
bool waits_for_others(const WatchedRank& rank) {
  return !rank.status.waits_in.empty() && 2 * rank.status.waited_ms >= rank.status.patience_ms;
}

std::string name_of_rank(const WatchedRank& rank) {
  const RankStatus& status = rank.status;
  const std::string where = status.host.empty() ? "" : " on " + status.host;
  return fmt::format("rank {} (process {}{})", status.rank, status.process, where);
}

std::string place_of(const RankStatus& status) {
  std::string text = status.step > 0 ? fmt::format("in step {}", status.step) : "between steps";
  if (!status.waits_in.empty())
    text += fmt::format(", in {} for {:.1f} s", status.waits_in, in_seconds(status.waited_ms));
  return text + (status.last.empty() ? "; it has finished no collective"
                                     : fmt::format("; its last collective was {}", status.last));
}

std::string place_of(const DevicePlace& device) {
  return fmt::format("in step {}, {} its backward pass", device.step,
                     device.behind_backward ? "after" : "before the end of");
}

using Ranks = std::vector<const WatchedRank*>;

// The ranks to blame among `quiet`, which are alive and whose host does not wait in a collective. If devices
// hang, the host of each rank waits for its own device, and all devices but one wait for gradients: the
// device with the least progress is to blame. (A rank that is not overdue is only slower.) Empty if all have
// the same progress.
Ranks to_blame_of(const Ranks& quiet) {
  Ranks behind;
  bool apart = quiet.size() == 1;
  for (const WatchedRank* rank : quiet) {
    const DevicePlace& place = rank->status.device;
    if (place.step == 0) return quiet;
    apart = apart || place != quiet.front()->status.device;
    if (!rank->status.overdue) continue;
    if (!behind.empty() && place < behind.front()->status.device) behind.clear();
    if (behind.empty() || place == behind.front()->status.device) behind.push_back(rank);
  }
  return apart && !behind.empty() ? behind : Ranks{};
}

std::string blame(const WatchedRank& rank, Milliseconds interval) {
  const std::string name = name_of_rank(rank);
  if (!rank.heard) return fmt::format("rank {} has sent nothing since the start", rank.status.rank);
  if (rank.dead) return describe_dead(rank);
  if (is_silent(rank, interval)) {
    return fmt::format(
        "{} has sent nothing for {:.1f} s: it is stopped, or its machine or the link to it is down; at its "
        "last heartbeat it was {}",
        name, in_seconds(rank.silent.count()), place_of(rank.status));
  }
  const std::string why = rank.status.overdue_text.empty() ? "" : " (" + rank.status.overdue_text + ")";
  const DevicePlace& device = rank.status.device;
  const std::string where = device.step > 0 ? "its device is " + place_of(device) + "; " : "";
  return fmt::format("{} is alive but hangs{}: {}it is {}", name, why, where, place_of(rank.status));
}

// The ranks that wait in one collective, and their longest wait.
struct Waiters {
  std::vector<int> ranks;
  std::int64_t longest_ms = 0;
};

std::string tell_waits(const Ranks& waiting) {
  std::map<std::string, Waiters> by_collective;
  for (const WatchedRank* rank : waiting) {
    Waiters& waiters = by_collective[rank->status.waits_in];
    waiters.ranks.push_back(rank->status.rank);
    waiters.longest_ms = std::max(waiters.longest_ms, rank->status.waited_ms);
  }
  std::string text;
  for (const auto& [collective, waiters] : by_collective) {
    text += fmt::format("\n{} wait{} in {} for {:.1f} s", named_ranks(waiters.ranks),
                        waiters.ranks.size() == 1 ? "s" : "", collective, in_seconds(waiters.longest_ms));
  }
  return text;
}

// The progress of the devices of ranks that are not to blame.
std::string tell_devices(const Ranks& quiet, const std::vector<int>& to_blame) {
  std::map<DevicePlace, std::vector<int>> by_place;
  for (const WatchedRank* rank : quiet) {
    const RankStatus& status = rank->status;
    if (status.device.step > 0 && !std::ranges::binary_search(to_blame, status.rank))
      by_place[status.device].push_back(status.rank);
  }
  std::string text;
  for (const auto& [place, ranks] : by_place) {
    const bool one = ranks.size() == 1;
    text += fmt::format("\nthe {} of {} {} {}", one ? "device" : "devices", named_ranks(ranks),
                        one ? "is" : "are", place_of(place));
  }
  return text;
}

}  // namespace

bool is_lost(const WatchedRank& rank, Milliseconds interval) {
  return rank.dead || is_silent(rank, interval);
}

std::string describe_dead(const WatchedRank& rank) {
  return fmt::format("{} is dead; at its last heartbeat it was {}", name_of_rank(rank),
                     place_of(rank.status));
}

bool needs_verdict(std::span<const WatchedRank> ranks) {
  return std::ranges::any_of(ranks, [](const WatchedRank& rank) {
    if (rank.left) return false;
    return rank.dead || rank.status.overdue ||
           (rank.heard && rank.silent >= Milliseconds(rank.status.patience_ms));
  });
}

Verdict judge(std::span<const WatchedRank> ranks, Milliseconds interval) {
  Ranks lost, quiet, waiting, unknown;
  for (const WatchedRank& rank : ranks) {
    if (rank.left) continue;
    if (!rank.heard)
      unknown.push_back(&rank);
    else if (is_lost(rank, interval))
      lost.push_back(&rank);
    else
      (waits_for_others(rank) ? waiting : quiet).push_back(&rank);
  }
  // If a rank is lost, a rank that has not entered a collective may wait for the lost one in another way.
  const Ranks& absent = quiet.empty() ? unknown : quiet;
  const Ranks blamed = !lost.empty() ? lost : waiting.empty() ? to_blame_of(absent) : absent;
  Verdict verdict;
  for (const WatchedRank* rank : blamed) {
    verdict.to_blame.push_back(rank->status.rank);
    constexpr std::size_t kTold = 16;
    if (verdict.to_blame.size() <= kTold)
      verdict.text += (verdict.text.empty() ? "" : "\n") + blame(*rank, interval);
  }
  std::ranges::sort(verdict.to_blame);
  if (blamed.empty()) {
    verdict.text =
        fmt::format("all ranks are alive and {}: their messages make no progress, or a device hangs",
                    quiet.empty() ? "wait in collectives"
                                  : "their devices are " + place_of(quiet.front()->status.device));
  }
  verdict.text += tell_waits(waiting);
  if (!blamed.empty()) verdict.text += tell_devices(quiet, verdict.to_blame);
  constexpr std::size_t kAsked = 4;
  for (const WatchedRank* rank : lost) {
    if (verdict.witnesses.size() == kAsked) break;
    const auto found = std::ranges::find_if(ranks, [&](const WatchedRank& other) {
      return other.heard && !other.left && std::ranges::find(lost, &other) == lost.end() &&
             other.status.host == rank->status.host;
    });
    verdict.witnesses.push_back({rank->status.rank, found == ranks.end() ? -1 : found->status.rank});
  }
  const auto is_blamed = [&](const WatchedRank* rank) {
    return std::ranges::binary_search(verdict.to_blame, rank->status.rank);
  };
  for (const WatchedRank* rank : quiet) {
    if (verdict.ask.size() < kAsked && (!lost.empty() || is_blamed(rank)))
      verdict.ask.push_back(rank->status.rank);
  }
  if (const auto waits = std::ranges::find_if_not(quiet, is_blamed); !waiting.empty())
    verdict.ask.push_back(waiting.front()->status.rank);
  else if (lost.empty() && waits != quiet.end())  // its device waits for the devices of its peers
    verdict.ask.push_back((*waits)->status.rank);
  return verdict;
}

}  // namespace lockstep
