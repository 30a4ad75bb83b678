// SPDX-License-Identifier: Apache-2.0
//
// Why a job hangs, out of what ranks have told: pure reasoning, no threads and no clocks. A rank is to blame
// that is dead, that is not heard of any more, that is alive and not in the collective in which others wait,
// or whose GPU is behind those of the others. Where all are at one place, nobody is: the link between them,
// or what carries messages, is.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/watchdog/rank_status.h"

namespace lockstep {

// What one who watches knows of a rank.
struct WatchedRank {
  RankStatus status;                    // its last
  std::chrono::milliseconds silent{0};  // since then
  bool heard = false;                   // of it, ever
  bool dead = false;  // its process ended without a word, so long ago that whoever started it has been told
  bool left = false;  // it said goodbye: nothing of it is expected any more
};

// Whether a rank is dead, silent for longer than it may be, or waits for too long: something is wrong.
bool needs_verdict(std::span<const WatchedRank> ranks);

// It is dead, or was silent for long enough to be held for it where somebody waits. interval: of heartbeats.
bool is_lost(const WatchedRank& rank, std::chrono::milliseconds interval);
// "rank 2 (process 7 on node1) is dead; it was in step 3; its last collective was .."
std::string describe_dead(const WatchedRank& rank);

struct Verdict {
  std::vector<int> to_blame;  // ascending; empty: nobody alone
  std::string text;           // lines: who hangs and where it was last, and what the others wait for
  // Whom to ask where their threads stand: those to blame who are alive, and one who waits.
  std::vector<int> ask;
  // Those to blame who cannot be asked, each with one who shares its host and can look at its process; -1:
  // nobody can.
  struct Witness {
    int of;
    int rank;
  };
  std::vector<Witness> witnesses;
};

// Something is wrong (needs_verdict).
Verdict judge(std::span<const WatchedRank> ranks, std::chrono::milliseconds interval);

}  // namespace lockstep
