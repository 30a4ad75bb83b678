// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/jobs/node_view.h"

#include <algorithm>
#include <system_error>

#include <unistd.h>

#include "core/system/host_name.h"
#include "core/timeline.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr double kFiguresHoldSeconds = 5;

}  // namespace

bool runs_in(const SeenRank& rank, const fs::path& run_dir) {
  std::error_code ignored;
  const std::string shown = rank.identity.run_dir.str();
  // The rank shows only the end of a long path.
  const decltype(rank.identity.run_dir) wanted(fs::absolute(run_dir, ignored).lexically_normal().string());
  return shown == wanted.str() || fs::equivalent(shown, run_dir, ignored);
}

const SeenRank& SeenJob::speaker() const {
  const auto lives = [](const SeenRank& rank) { return rank.life != RankLife::died; };
  const auto found = std::ranges::find_if(ranks, lives);
  return found == ranks.end() ? ranks.front() : *found;
}

bool SeenJob::died() const { return speaker().life == RankLife::died; }

bool NodeView::anybody_lives() const {
  return silent_seconds == 0 && std::ranges::any_of(jobs, [](const SeenJob& job) { return !job.died(); });
}

NodeView NodeViewer::look(const fs::path& run_dir) {
  NodeView view{.host = host_name(), .time = seconds_since_1970()};
  for (SeenRank& rank : see_ranks(folder_)) {
    if (!run_dir.empty() && !runs_in(rank, run_dir)) continue;
    const bool same_job =
        !view.jobs.empty() && view.jobs.back().identity().job.str() == rank.identity.job.str();
    if (!same_job) view.jobs.emplace_back();
    view.jobs.back().ranks.push_back(std::move(rank));
  }
  view.time_ns = now_ns();
  ask_devices(view);
  return view;
}

void NodeViewer::ask_devices(NodeView& view) {
  for (const SeenJob& job : view.jobs) {
    for (const SeenRank& rank : job.ranks) {
      const std::string uuid = rank.identity.device_uuid.str();
      if (uuid.empty() || rank.life == RankLife::died || view.devices.contains(uuid)) continue;
      if (!nvml_) nvml_ = std::make_unique<Nvml>(nvml_library_);
      if (!nvml_->problem().empty()) return;
      std::unique_ptr<NvmlDevice>& device = devices_[uuid];
      if (!device) device = std::make_unique<NvmlDevice>(*nvml_, uuid, rank.identity.device_address.str());
      view.devices[uuid] = device->sample();
    }
  }
  if (nvml_) view.contexts = nvml_->contexts();
}

void remove_dead_jobs(const NodeView& view) {
  for (const SeenJob& job : view.jobs) {
    if (!job.died()) continue;
    for (const SeenRank& rank : job.ranks) unlink(rank.path.c_str());
  }
}

std::string_view state_of(const SeenRank& rank) {
  if (rank.life == RankLife::died) return "died";
  if (rank.life == RankLife::stopped) return "stopped";
  return rank.waits ? "waiting" : name_of(rank.progress.activity);
}

bool figures_hold(const SeenRank& rank, std::int64_t now_ns) {
  const RankProgress& progress = rank.progress;
  if (progress.window_steps == 0 || rank.life != RankLife::running) return false;
  return seconds_between(progress.step_ns, now_ns) <
         std::max(kFiguresHoldSeconds, 3 * progress.step_seconds());
}

}  // namespace lockstep
