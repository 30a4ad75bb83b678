// SPDX-License-Identifier: Apache-2.0
//
// metrics_from(): reads the metrics of a node from a file that anyone may have written.
#include <map>
#include <utility>

#include "launch/observe/prometheus/metric_table.h"
#include "launch/observe/prometheus/node_metrics.h"

namespace lockstep {
namespace {

using namespace metric_table;

// Reads the samples in two passes: jobs and identities first, because figures depend on them.
class MetricReader {
 public:
  explicit MetricReader(std::string_view text) : samples_(parse_exposition(text)) {}

  std::optional<NodeMetrics> read() {
    for (const ParsedSample& sample : samples_) read_job(sample);
    clock_.time = metrics_.view.time;
    for (const ParsedSample& sample : samples_)
      if (sample.name == kRankInfo.name) read_identity(sample);
    if (ranks_.empty()) return std::nullopt;
    for (const ParsedSample& sample : samples_) read_figure(sample);
    for (const ParsedSample& sample : samples_) read_phase(sample);
    metrics_.view.time_ns = clock_.ns;
    metrics_.view.jobs.emplace_back();
    for (auto& [number, rank] : ranks_) metrics_.view.jobs.front().ranks.push_back(std::move(rank));
    return std::move(metrics_);
  }

 private:
  static std::string label(const ParsedSample& sample, std::string_view name) {
    const auto found = sample.labels.find(name);
    return found == sample.labels.end() ? std::string() : found->second;
  }
  static std::int64_t number_label(const ParsedSample& sample, std::string_view name) {
    return number_from<std::int64_t>(label(sample, name)).value_or(0);
  }
  // The figure of this name in a table, or null.
  template <typename Table>
  static auto figure_of(const Table& table, const std::string& name) {
    const auto found =
        std::ranges::find_if(table, [&](const auto& figure) { return figure.family.name == name; });
    return found == table.end() ? nullptr : &*found;
  }

  void read_job(const ParsedSample& sample) {
    if (const JobFigure* figure = figure_of(kJobFigures, sample.name)) figure->set(metrics_, sample.value);
    if (sample.name != kRunInfo.name) return;
    metrics_.view.host = label(sample, "host");
    metrics_.job.host = metrics_.view.host;
    metrics_.job.run_dir = label(sample, "run");
    metrics_.job.model = label(sample, "model");
    metrics_.job.job = label(sample, "job_name");
  }

  void read_identity(const ParsedSample& sample) {
    constexpr std::size_t kMostRanks = 4096;  // of a node; a malicious file could have many more
    const auto number = number_from<std::int64_t>(label(sample, "rank"));
    if (!number || (ranks_.size() >= kMostRanks && !ranks_.contains(*number))) return;
    RankIdentity& own = ranks_[*number].identity;
    own = metrics_.job;
    own.rank = *number;
    own.process = number_label(sample, "process");
    own.node = number_label(sample, "node");
    own.local_rank = number_label(sample, "local_rank");
    own.threads = number_label(sample, "threads");
    own.device = label(sample, "device");
    own.device_name = label(sample, "name");
    own.device_uuid = label(sample, "uuid");
    own.device_address = label(sample, "pci_address");
  }

  SeenRank* rank_of(const ParsedSample& sample) {
    const auto number = number_from<std::int64_t>(label(sample, "rank"));
    const auto found = number ? ranks_.find(*number) : ranks_.end();
    return found == ranks_.end() ? nullptr : &found->second;
  }

  void read_figure(const ParsedSample& sample) {
    if (const DeviceFigure* figure = figure_of(kDeviceFigures, sample.name)) {
      DeviceFigures& device = metrics_.view.devices[label(sample, "uuid")];
      device.name = label(sample, "name");
      device.pci_bus_id = label(sample, "pci_bus_id");
      if (figure->set != nullptr && std::isfinite(sample.value)) figure->set(device, sample.value);
      return;
    }
    SeenRank* rank = rank_of(sample);
    if (rank == nullptr) return;
    if (sample.name == kRankState.name && sample.value == 1) read_state(label(sample, "state"), *rank);
    const RankFigure* figure = figure_of(kRankFigures, sample.name);
    if (figure == nullptr || !std::isfinite(sample.value)) return;
    figure->set(*rank, sample.value, clock_);
    if (figure->of_window) rank->progress.window_steps = 1;
  }

  static void read_state(std::string_view state, SeenRank& rank) {
    rank.progress.activity = Activity::training;
    for (std::size_t i = 0; i < std::size(kActivityWords); ++i)
      if (kActivityWords[i] == state) rank.progress.activity = static_cast<Activity>(i);
    if (state == "stopped") rank.life = RankLife::stopped;
    if (state == "died") rank.life = RankLife::died;
  }

  // After the seconds of a step, which lie in the account's rest until then.
  void read_phase(const ParsedSample& sample) {
    SeenRank* rank = sample.name == kPhaseRatio.name ? rank_of(sample) : nullptr;
    if (rank == nullptr || !(sample.value >= 0 && sample.value <= 1)) return;
    StepAccount& account = rank->progress.account;
    for (std::size_t i = 0; i < kPhases; ++i) {
      const auto phase = static_cast<Phase>(i);
      if (phase == Phase::rest || name_of(phase) != label(sample, "phase")) continue;
      account[phase] = sample.value * account.total();
      account[Phase::rest] = std::max(0.0, account[Phase::rest] - account[phase]);
    }
  }

  std::vector<ParsedSample> samples_;
  NodeMetrics metrics_;
  MetricClock clock_{.ns = kReadersNow};
  std::map<std::int64_t, SeenRank> ranks_;
};

}  // namespace

std::optional<NodeMetrics> metrics_from(std::string_view text) { return MetricReader(text).read(); }

}  // namespace lockstep
