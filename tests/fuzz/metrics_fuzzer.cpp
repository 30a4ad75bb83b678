// SPDX-License-Identifier: Apache-2.0
//
// Metrics files that `lockstep monitor --from` reads from a folder that several machines can write to.
#include "core/system/printable.h"
#include "launch/observe/jobs/job_table.h"
#include "launch/observe/prometheus/node_metrics.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {

void try_input(std::string_view input) {
  const auto metrics = metrics_from(input);
  if (!metrics) return;
  const SeenJob& job = metrics->view.jobs.front();
  std::string table = table_of(metrics->view, 30, {});
  std::erase(table, '\n');
  require(!has_control_characters(table), "the table must contain no control characters");
  const auto again = metrics_from(to_prometheus(*metrics));
  require(again && again->view.jobs.front().ranks.size() == job.ranks.size(),
          "written metrics must have the same ranks");
}

std::vector<std::string> seeds() {
  SeenRank rank{.identity = {.ranks = 2,
                             .job = "a.1.2",
                             .run_dir = "/runs/\"x\"\n\\",
                             .device = "cuda:0",
                             .device_uuid = "GPU-1"}};
  rank.progress.step_ns = rank.progress.activity_ns = rank.progress.idle_since_ns = 1'000'000'000;
  rank.progress.window_steps = 10;
  rank.progress.account[Phase::forward] = 1;
  NodeMetrics metrics{
      .job = rank.identity,
      .view = {.host = "a", .time = 1.7e9, .time_ns = 2'000'000'000, .jobs = {{.ranks = {rank}}}}};
  metrics.view.devices["GPU-1"] = {.name = "H100", .celsius = 61, .utilization = 97, .memory_bytes = 1000};
  const std::string whole = to_prometheus(metrics);
  std::string huge = whole;
  for (std::size_t at = 0; (at = huge.find("} ", at)) != std::string::npos; at += 2)
    huge.replace(at, huge.find('\n', at) - at, "} -1e300");
  return {whole, huge,
          "lockstep_rank_info{rank=\"-9223372036854775808\"} NaN\nlockstep_epoch{rank=\"0\"} +Inf\n"};
}

}  // namespace lockstep::fuzz
