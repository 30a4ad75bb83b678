// SPDX-License-Identifier: Apache-2.0
//
// The ranks of this machine that publish their state (ShownRank), read by another process. Reading does not
// affect them: it reads their files and /proc.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/timeline.h"
#include "launch/observe/jobs/rank_state.h"
#include "launch/observe/jobs/shown_rank.h"
#include "launch/observe/monitor/process.h"

namespace lockstep {

enum class RankLife {
  running,
  stopped,  // by a signal, or a debugger
  died,     // without removing its file: it was killed, or failed
};

// A collective that a rank is in.
struct CollectiveWait {
  std::string what;  // see describe(Collective)
  double seconds = 0;
};

struct SeenRank {
  std::filesystem::path path;
  std::uint32_t user = 0;
  RankIdentity identity;
  RankProgress progress;
  RankLife life = RankLife::running;
  std::optional<ProcessFigures> process;  // if it lives and its PID namespace is this process's
  std::optional<CollectiveWait> waits;    // set if it has lasted 1 s or longer
};

// Ranks of this user, or of all users for root, sorted by job and rank. job: see RankIdentity; empty: all.
// now: the moment up to which waits are measured.
std::vector<SeenRank> see_ranks(const std::filesystem::path& folder = kRankFolder,
                                const std::string& job = {}, std::int64_t now = now_ns());

// Removes the files of ranks that died and published nothing for `older_than`.
void remove_dead_ranks(std::chrono::seconds older_than, const std::filesystem::path& folder);

}  // namespace lockstep
