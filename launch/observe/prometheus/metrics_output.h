// SPDX-License-Identifier: Apache-2.0
//
// MetricsOutput: passes the metrics of a job on one node to Prometheus: as a file for the textfile collector
// of node_exporter, replaced whole, or over HTTP. On the first rank of each node, because only processes of
// the node see its ranks and devices. The node's DeviceMonitor writes; failures end neither it nor the
// training.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "comm/communicator.h"
#include "comm/world.h"
#include "core/system/last_words.h"
#include "launch/observe/prometheus/metrics_server.h"
#include "launch/observe/prometheus/node_metrics.h"
#include "launch/observe/prometheus/prometheus_options.h"

namespace lockstep {

// Files of metrics: "lockstep.RUN-HASH.HOST.prom".
inline constexpr std::string_view kMetricsPrefix = "lockstep.", kMetricsSuffix = ".prom";

// The name of a run's file on a node. A restarted run has the same name, so it replaces the file that a
// killed start left.
std::string metrics_file_name(const std::string& run_dir, const std::string& host);

class MetricsOutput {
 public:
  // job: see NodeMetrics. host: of the file's name; unique among the nodes. counts_warnings: true on rank 0.
  // Throws the errors of MetricsServer.
  MetricsOutput(const PrometheusOptions& options, const RankIdentity& job, const std::string& host,
                bool counts_warnings);
  // Removes the file and ends the server.
  ~MetricsOutput();
  MetricsOutput(const MetricsOutput&) = delete;
  MetricsOutput& operator=(const MetricsOutput&) = delete;

  const RankIdentity& job() const { return job_; }
  // Publishes the figures; sets `job` and `warnings` of them. One thread, which may wait for a slow disk.
  void publish(NodeMetrics metrics);
  // Counts a warning. Any thread; never waits.
  void count_warning(std::string_view kind, std::string_view cause);
  // Where the metrics are: paths and URLs, for people.
  std::string places() const;

 private:
  void write(const std::string& text);

  RankIdentity job_;
  bool counts_warnings_;
  std::filesystem::path file_;  // empty: none
  std::optional<RemovedAtEnd> removed_at_end_;
  bool warned_ = false;
  std::unique_ptr<MetricsServer> server_;  // null: none
  static constexpr std::size_t kWarningKinds = 9;
  std::array<std::atomic<std::int64_t>, kWarningKinds> warnings_ = {};
};

// Collective; throws agreed errors. Null on ranks that are not the first of their node, and if options has
// neither file nor server. Removes files that an earlier start of this run left in a shared folder.
std::shared_ptr<MetricsOutput> begin_metrics_output(const PrometheusOptions& options, const RankIdentity& job,
                                                    const World& world, Communicator& host);

}  // namespace lockstep
