// SPDX-License-Identifier: Apache-2.0
//
// Finds out why a job hangs from the statuses of its ranks: pure functions, no threads and no clocks. A rank
// is to blame if it is dead, silent, alive but not in the collective in which its peers wait, or if its GPU
// has made less progress than those of its peers. If all ranks have the same progress none is to blame: their
// messages do not arrive, or a device hangs.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "comm/watchdog/rank_status.h"

namespace lockstep {

// A watching rank's knowledge of another rank.
struct WatchedRank {
  RankStatus status;                    // its last one
  std::chrono::milliseconds silent{0};  // time since then
  bool heard = false;                   // true if a status ever arrived
  bool dead = false;  // its link ended without a goodbye, long enough ago for its launcher to act
  bool left = false;  // it said goodbye: no status is expected any more
};

// True if a rank is dead, silent for longer than allowed, or overdue. A rank that was never heard is not
// silent: a firewall may block its connection.
bool needs_verdict(std::span<const WatchedRank> ranks);

// True if a rank is dead, or silent for long enough to be blamed while its peers wait. interval: between
// heartbeats.
bool is_lost(const WatchedRank& rank, std::chrono::milliseconds interval);
// "rank 2 (process 7 on node1) is dead; at its last heartbeat it was in step 3; its last collective was .."
std::string describe_dead(const WatchedRank& rank);

struct Verdict {
  std::vector<int> to_blame;  // ascending; empty: no single rank
  std::string text;           // lines: which rank hangs, where it was last, and what its peers wait for
  // The ranks to ask for their stacks: those to blame that are alive, and one that waits.
  std::vector<int> ask;
  // Ranks to blame that cannot be asked (`of`), each with a rank of its host that can inspect its process;
  // -1: none.
  struct Witness {
    int of;
    int rank;
  };
  std::vector<Witness> witnesses;
};

// Requires needs_verdict().
Verdict judge(std::span<const WatchedRank> ranks, std::chrono::milliseconds interval);

}  // namespace lockstep
