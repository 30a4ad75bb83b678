// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/prometheus/metrics_output.h"

#include <algorithm>
#include <cctype>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "comm/agreement.h"
#include "core/files/atomic_file.h"
#include "core/files/crc32c.h"
#include "core/log.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct WarningKind {
  std::string_view kind, cause;
};
// The causes of IdleCause, and stragglers. The last one counts all others.
constexpr std::array<WarningKind, 9> kKinds = {{{"idle", "data"},
                                                {"idle", "communication"},
                                                {"idle", "allocation"},
                                                {"idle", "small_work"},
                                                {"idle", "memory"},
                                                {"idle", "monitoring"},
                                                {"idle", "architecture"},
                                                {"straggler", "slow_rank"},
                                                {"other", "other"}}};

// "lockstep.RUN-HASH."
std::string name_of_run(const std::string& run_dir) {
  std::string run = fs::path(run_dir).filename().string();
  constexpr std::size_t kLongest = 64;
  run.resize(std::min(run.size(), kLongest));
  for (char& c : run)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '_') c = '_';
  return fmt::format("{}{}-{:08x}.", kMetricsPrefix, run, crc32c(run_dir));
}

void remove_files_of_run(const fs::path& folder, const std::string& run_dir) {
  const std::string name = name_of_run(run_dir);
  std::error_code error;
  for (fs::directory_iterator each(folder, error), end; !error && each != end; each.increment(error))
    if (each->path().filename().string().starts_with(name)) unlink(each->path().c_str());
}

}  // namespace

std::string metrics_file_name(const std::string& run_dir, const std::string& host) {
  return fmt::format("{}{}{}", name_of_run(run_dir), host, kMetricsSuffix);
}

MetricsOutput::MetricsOutput(const PrometheusOptions& options, const RankIdentity& job,
                             const std::string& host, bool counts_warnings)
    : job_(job), counts_warnings_(counts_warnings) {
  static_assert(kKinds.size() == kWarningKinds);
  if (options.address != PrometheusOptions::kNone) server_ = std::make_unique<MetricsServer>(options.address);
  if (options.dir == PrometheusOptions::kNone) return;
  file_ = fs::absolute(options.dir) / metrics_file_name(job.run_dir.str(), host);
  std::error_code ignored;
  fs::create_directories(file_.parent_path(), ignored);
  removed_at_end_.emplace(file_);
}

MetricsOutput::~MetricsOutput() {
  if (!file_.empty()) unlink(file_.c_str());
}

void MetricsOutput::count_warning(std::string_view kind, std::string_view cause) {
  const auto found = std::ranges::find_if(
      kKinds, [&](const WarningKind& each) { return each.kind == kind && each.cause == cause; });
  const auto index = std::min<std::ptrdiff_t>(found - kKinds.begin(), kWarningKinds - 1);
  warnings_[static_cast<std::size_t>(index)].fetch_add(1, std::memory_order_relaxed);
}

void MetricsOutput::publish(NodeMetrics metrics) {
  metrics.job = metrics.view.jobs.empty() ? job_ : metrics.view.jobs.front().identity();
  for (std::size_t i = 0; counts_warnings_ && i < kKinds.size(); ++i)
    metrics.warnings.push_back({.kind = kKinds[i].kind,
                                .cause = kKinds[i].cause,
                                .count = warnings_[i].load(std::memory_order_relaxed)});
  std::string text = to_prometheus(metrics);
  if (!file_.empty()) write(text);
  if (server_) server_->show(std::move(text));
}

// Does not sync the disk: the file is written every second. Replaces another user's link.
void MetricsOutput::write(const std::string& text) {
  try {
    write_atomically(file_, text, Links::replace, Durable::no);
  } catch (const IoError& error) {
    if (!std::exchange(warned_, true))
      log::warning("{}; training continues without metrics for Prometheus in this file", error.what());
  }
}

std::string MetricsOutput::places() const {
  std::vector<std::string> places;
  if (!file_.empty()) places.push_back(file_.string());
  if (server_) places.push_back(server_->url());
  return fmt::format("{}: {}", job_.host.str(), fmt::join(places, ", "));
}

std::shared_ptr<MetricsOutput> begin_metrics_output(const PrometheusOptions& options, const RankIdentity& job,
                                                    const World& world, Communicator& host) {
  if (!options.any()) return nullptr;
  std::shared_ptr<MetricsOutput> output;
  const bool first_of_node = world.local_rank() == 0;
  const auto hosts = gather_texts(host, first_of_node ? world.host() : "");
  const bool one_of_several = std::ranges::count(hosts, world.host()) > 1;  // nodes with the same host name
  if (world.rank() == 0 && options.dir != PrometheusOptions::kNone)
    remove_files_of_run(options.dir, job.run_dir.str());
  run_agreed(host, [&] {
    if (first_of_node)
      output = std::make_shared<MetricsOutput>(
          options, job, one_of_several ? fmt::format("{}-{}", world.host(), world.node()) : world.host(),
          world.rank() == 0);
  });
  return output;
}

}  // namespace lockstep
