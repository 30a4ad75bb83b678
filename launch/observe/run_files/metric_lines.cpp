// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/run_files/metric_lines.h"

#include <algorithm>

#include <fmt/ranges.h>

namespace lockstep {
namespace {

constexpr double kWorthTelling = 0.02;  // share of an epoch's time

std::string rate_text(double bytes_per_second) {
  if (bytes_per_second >= 1e9) return fmt::format("{:.1f} GB/s", bytes_per_second * 1e-9);
  if (bytes_per_second >= 1e5) return fmt::format("{:.1f} MB/s", bytes_per_second * 1e-6);
  return fmt::format("{:.1f} kB/s", bytes_per_second * 1e-3);
}

}  // namespace

void add_metrics(const EvaluationMetrics& metrics, std::vector<std::string>& parts) {
  if (metrics.top5) parts.push_back(fmt::format("top5 {:.2f} %", 100 * *metrics.top5));
  if (metrics.iou_mean) parts.push_back(fmt::format("iou {:.3f}", *metrics.iou_mean));
  if (metrics.f1_macro) parts.push_back(fmt::format("f1 {:.3f}", *metrics.f1_macro));
}

std::vector<std::string> communication_parts(const EpochCommunication& communication) {
  const double steps = static_cast<double>(std::max<std::int64_t>(1, communication.mine.steps));
  const auto milliseconds = [&](double seconds) { return fmt::format("{:.1f} ms", 1e3 * seconds / steps); };
  std::vector<std::string> parts = {
      fmt::format("comm {} a step", milliseconds(communication.exposed() + communication.hidden())),
      fmt::format("{:.1f} % hidden", 100 * communication.overlap()),
      fmt::format("| wire {} ({})", milliseconds(communication.wire()),
                  rate_text(communication.wire_bytes_per_second()))};
  if (const int rank = communication.late_rank(); rank >= 0)
    parts.push_back(fmt::format("| late rank {}: {}", rank, milliseconds(communication.late())));
  return parts;
}

std::vector<std::string> price_of_metrics(const EpochRecord& record) {
  std::vector<std::string> advice;
  std::vector<std::string_view> names;
  if (record.evaluation && record.evaluation->metrics) names = record.evaluation->metrics->names();
  const double epoch = record.train_seconds + record.evaluation_seconds;
  if (!names.empty() && record.metrics_seconds > kWorthTelling * epoch)
    advice.push_back(fmt::format("metrics took {:.1f} % of the epoch: leaving {} out saves that",
                                 100 * record.metrics_seconds / epoch, fmt::join(names, ", ")));
  if (record.within_seconds > kWorthTelling * epoch)
    advice.push_back(fmt::format("evaluations took {:.1f} % of the epoch: run.metrics_every=0 saves {:.1f} %",
                                 100 * record.evaluation_seconds / epoch,
                                 100 * record.within_seconds / epoch));
  return advice;
}

}  // namespace lockstep
