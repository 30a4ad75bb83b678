// SPDX-License-Identifier: Apache-2.0
//
// NodeView: a snapshot of the trainings on this machine: their ranks by job, and the driver's figures of
// their GPUs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "launch/observe/jobs/seen_ranks.h"
#include "launch/observe/monitor/nvml.h"

namespace lockstep {

// The ranks of a job on this machine, sorted by rank; at least one.
struct SeenJob {
  std::vector<SeenRank> ranks;

  const RankIdentity& identity() const { return ranks.front().identity; }
  // The rank whose figures represent the job: the lowest living one here, else the lowest.
  const SeenRank& speaker() const;
  bool died() const;  // true if all ranks died
};

struct NodeView {
  std::string host;
  double time = 0;           // seconds since 1970
  std::int64_t time_ns = 0;  // now_ns()
  // Age of the last values where this view was read from a file that is no longer written; 0: current.
  double silent_seconds = 0;
  std::vector<SeenJob> jobs;
  std::map<std::string, DeviceFigures> devices;  // by UUID; empty if the driver does not report
  std::vector<DeviceContext> contexts;  // those of all processes; empty if the driver does not report

  bool has_jobs() const { return !jobs.empty(); }
  bool anybody_lives() const;
};

// Takes views repeatedly, and keeps NVML loaded between them.
class NodeViewer {
 public:
  explicit NodeViewer(std::filesystem::path folder = kRankFolder, std::string nvml_library = Nvml::kLibrary)
      : folder_(std::move(folder)), nvml_library_(std::move(nvml_library)) {}
  // run_dir: restricts the view to the job of this folder; empty: all jobs.
  NodeView look(const std::filesystem::path& run_dir = {});

 private:
  void ask_devices(NodeView& view);

  std::filesystem::path folder_;
  std::string nvml_library_;
  std::unique_ptr<Nvml> nvml_;  // created for the first GPU
  std::map<std::string, std::unique_ptr<NvmlDevice>> devices_;
};

// True if run_dir is the folder of the rank's run.
bool runs_in(const SeenRank& rank, const std::filesystem::path& run_dir);

// Removes the files of jobs without a living rank.
void remove_dead_jobs(const NodeView& view);

// "died", "stopped", "waiting" for other ranks, or else the name of its activity.
std::string_view state_of(const SeenRank& rank);
// True if the figures of the last steps are current: the rank runs, and the time since its last step is below
// 5 s, or below the time of three steps if that is longer. They are outdated in a longer evaluation.
bool figures_hold(const SeenRank& rank, std::int64_t now_ns);

}  // namespace lockstep
