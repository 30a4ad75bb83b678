// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/jobs/node_files.h"

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <sys/stat.h>

#include "core/error.h"
#include "core/timeline.h"
#include "launch/observe/prometheus/metrics_output.h"
#include "launch/observe/prometheus/node_metrics.h"
#include "launch/train/checkpoint/plain_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostBytes = std::uint64_t{16} << 20;

// A node is silent after three intervals and this time, in which a busy machine may not have written.
constexpr double kSilentAfterSeconds = 10;

std::optional<NodeView> view_in(const fs::path& file) {
  std::string text;
  struct stat status = {};
  if (lstat(file.c_str(), &status) != 0) return std::nullopt;
  try {
    text = read_plain_file(file, kMostBytes);
  } catch (const Error&) {  // such as a job that ended meanwhile
    return std::nullopt;
  }
  std::optional<NodeMetrics> metrics = metrics_from(text);
  if (!metrics) return std::nullopt;
  NodeView view = std::move(metrics->view);
  for (SeenRank& rank : view.jobs.front().ranks) rank.user = status.st_uid;
  // Current values are as old as the node says; whether it is silent assumes that the clocks of the machines
  // agree to kSilentAfterSeconds.
  const double now = seconds_since_1970(), age = now - view.time;
  if (age > 3 * metrics->interval_seconds + kSilentAfterSeconds) {
    view.silent_seconds = age;
    view.time = now;
    view.time_ns += static_cast<std::int64_t>(1e9 * age);
  }
  return view;
}

}  // namespace

std::vector<NodeView> view_files(const fs::path& folder, const fs::path& run_dir) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator each(folder, error), end; !error && each != end; each.increment(error)) {
    const std::string name = each->path().filename().string();
    if (name.starts_with(kMetricsPrefix) && name.ends_with(kMetricsSuffix)) files.push_back(each->path());
  }
  if (error) throw IoError(fmt::format("{}: {}", folder.string(), error.message()));
  std::ranges::sort(files);
  std::vector<NodeView> views;
  for (const fs::path& file : files) {
    std::optional<NodeView> view = view_in(file);
    if (!view) continue;
    if (run_dir.empty() || runs_in(view->jobs.front().speaker(), run_dir)) views.push_back(std::move(*view));
  }
  return views;
}

}  // namespace lockstep
