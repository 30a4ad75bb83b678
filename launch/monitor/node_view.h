// SPDX-License-Identifier: Apache-2.0
//
// NodeView: what is to be seen of the trainings on this machine at one moment: their ranks, by job, and what
// the driver tells of their GPUs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "launch/monitor/nvml.h"
#include "launch/monitor/seen_ranks.h"

namespace lockstep {

// The ranks of a job that are on this machine, at least one; by rank.
struct SeenJob {
  std::vector<SeenRank> ranks;

  const RankIdentity& identity() const { return ranks.front().identity; }
  // Of the job's figures, those of the lowest rank here that lives; else of the lowest.
  const SeenRank& speaker() const;
  bool died() const;  // all of them
};

struct NodeView {
  std::string host;
  double time = 0;           // seconds since 1970
  std::int64_t time_ns = 0;  // now_ns()
  std::vector<SeenJob> jobs;
  std::map<std::string, DeviceFigures> devices;  // by UUID; empty where the driver does not tell
  std::vector<DeviceContext> contexts;           // of any process; likewise

  bool anybody_lives() const;
};

// Makes views one after the other.
class NodeViewer {
 public:
  explicit NodeViewer(std::filesystem::path folder = kRankFolder, std::string nvml_library = Nvml::kLibrary)
      : folder_(std::move(folder)), nvml_library_(std::move(nvml_library)) {}
  // run_dir: the only job to look at; empty: all.
  NodeView look(const std::filesystem::path& run_dir = {});

 private:
  void ask_devices(NodeView& view);

  std::filesystem::path folder_;
  std::string nvml_library_;
  std::unique_ptr<Nvml> nvml_;  // from the first GPU on
  std::map<std::string, std::unique_ptr<NvmlDevice>> devices_;
};

// Removes what the jobs left behind of which no rank lives.
void remove_dead_jobs(const NodeView& view);

// A word for people and programs: "died", "stopped", "waiting" for other ranks, or else what it does.
std::string_view state_of(const SeenRank& rank);
// Whether the figures of the last steps still say what it does: it has not been without a step for long.
bool figures_hold(const SeenRank& rank, std::int64_t now_ns);
// Since its last step, or since it does what it does, where that was later.
double quiet_seconds(const SeenRank& rank, std::int64_t now_ns);

}  // namespace lockstep
