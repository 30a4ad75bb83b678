// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/prometheus/node_metrics.h"

#include <algorithm>
#include <utility>

#include "launch/observe/prometheus/metric_table.h"

namespace lockstep {
namespace {

using namespace metric_table;

MetricLabels with(MetricLabels labels, std::string_view name, std::string value) {
  labels.emplace_back(name, std::move(value));
  return labels;
}

// Writes the families of a job one after the other.
class MetricWriter {
 public:
  explicit MetricWriter(const NodeMetrics& metrics)
      : metrics_(metrics),
        clock_{.time = metrics.view.time, .ns = metrics.view.time_ns},
        node_{{"run", metrics.job.run_dir.str()}, {"host", metrics.view.host}} {
    if (!metrics.view.jobs.empty()) ranks_ = metrics.view.jobs.front().ranks;
  }

  std::string write() {
    add_job();
    add_ranks();
    add_phases();
    add_devices();
    for (const HostFigure& figure : kHostFigures) add(figure.family, node_, figure.get(metrics_.host));
    page_.family(kWarnings);
    for (const WarningCount& each : metrics_.warnings)
      page_.sample(with(with(node_, "kind", std::string(each.kind)), "cause", std::string(each.cause)),
                   static_cast<double>(each.count));
    return page_.text();
  }

 private:
  void add(const MetricFamily& family, const MetricLabels& labels, const MetricValue& value) {
    page_.family(family);
    if (value) page_.sample(labels, *value);
  }

  MetricLabels of_rank(const SeenRank& rank) const {
    return with(with(node_, "rank", std::to_string(rank.identity.rank)), "device",
                rank.identity.device.str());
  }

  void add_job() {
    add(kRunInfo, with(with(node_, "model", metrics_.job.model.str()), "job_name", metrics_.job.job.str()),
        1);
    for (const JobFigure& figure : kJobFigures) add(figure.family, node_, figure.get(metrics_));
  }

  void add_ranks() {
    page_.family(kRankInfo);
    for (const SeenRank& rank : ranks_) {
      const RankIdentity& own = rank.identity;
      MetricLabels labels = of_rank(rank);
      for (const auto& [name, number] : {std::pair("process", own.process),
                                         {"node", own.node},
                                         {"local_rank", own.local_rank},
                                         {"threads", own.threads}})
        labels.emplace_back(name, std::to_string(number));
      labels.emplace_back("name", own.device_name.str());
      labels.emplace_back("uuid", own.device_uuid.str());
      labels.emplace_back("pci_address", own.device_address.str());
      page_.sample(labels, 1);
    }
    page_.family(kRankState);
    for (const SeenRank& rank : ranks_) {
      const std::string_view now =
          rank.life == RankLife::running ? name_of(rank.progress.activity) : state_of(rank);
      const auto add_state = [&](std::string_view state) {
        page_.sample(with(of_rank(rank), "state", std::string(state)), state == now ? 1 : 0);
      };
      std::ranges::for_each(kActivityWords, add_state);
      std::ranges::for_each(kOuterStates, add_state);
    }
    for (const RankFigure& figure : kRankFigures) {
      page_.family(figure.family);
      for (const SeenRank& rank : ranks_) {
        if (figure.of_window && !figures_hold(rank, clock_.ns)) continue;
        if (const MetricValue value = figure.get(rank, clock_)) page_.sample(of_rank(rank), *value);
      }
    }
  }

  // Phases that only GPUs have are omitted on a CPU.
  void add_phases() {
    const auto each_phase = [&](const SeenRank& rank, const StepAccount& account, double divisor) {
      for (std::size_t i = 0; i < kPhases; ++i) {
        const auto phase = static_cast<Phase>(i);
        if (is_of_gpus(phase) && rank.identity.device_uuid.str().empty()) continue;
        page_.sample(with(of_rank(rank), "phase", std::string(name_of(phase))), account[phase] / divisor);
      }
    };
    page_.family(kPhaseRatio);
    for (const SeenRank& rank : ranks_)
      if (const double total = rank.progress.account.total(); total > 0 && figures_hold(rank, clock_.ns))
        each_phase(rank, rank.progress.account, total);
    page_.family(kPhaseSeconds);
    for (const SeenRank& rank : ranks_) each_phase(rank, rank.progress.total, 1);
  }

  void add_devices() {
    for (const DeviceFigure& figure : kDeviceFigures) {
      page_.family(figure.family);
      for (const auto& [uuid, device] : metrics_.view.devices) {
        const auto value = figure.get(device);
        if (!value) continue;
        const auto rank = std::ranges::find(
            ranks_, uuid, [](const SeenRank& each) { return each.identity.device_uuid.str(); });
        MetricLabels labels =
            with(node_, "device", rank == ranks_.end() ? device.pci_bus_id : rank->identity.device.str());
        labels.emplace_back("uuid", uuid);
        labels.emplace_back("name", device.name);
        labels.emplace_back("pci_bus_id", device.pci_bus_id);
        page_.sample(labels, *value);
      }
    }
  }

  const NodeMetrics& metrics_;
  MetricClock clock_;
  MetricLabels node_;
  std::vector<SeenRank> ranks_;
  Exposition page_;
};

}  // namespace

std::string to_prometheus(const NodeMetrics& metrics) { return MetricWriter(metrics).write(); }

}  // namespace lockstep
