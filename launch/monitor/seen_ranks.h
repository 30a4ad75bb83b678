// SPDX-License-Identifier: Apache-2.0
//
// The ranks of this machine that show themselves (ShownRank), seen by another process. Looking touches none
// of them: it maps what they show to be read, and asks /proc.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/monitor/process.h"
#include "launch/monitor/rank_state.h"
#include "launch/monitor/shown_rank.h"

namespace lockstep {

enum class RankLife {
  running,
  stopped,  // by a signal, or a debugger
  died,     // without taking back what it showed: it was killed, or failed
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
  std::optional<ProcessFigures> process;  // where its numbers mean something here, and it is there
  std::optional<CollectiveWait> waits;    // for a second or longer
};

// Of this user, for root of all; by job and rank.
std::vector<SeenRank> see_ranks(const std::filesystem::path& folder = kRankFolder);

// Removes what ranks that died for so long ago left behind.
void remove_dead_ranks(std::chrono::seconds older_than, const std::filesystem::path& folder = kRankFolder);

}  // namespace lockstep
