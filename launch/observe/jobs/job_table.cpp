// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/jobs/job_table.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "core/system/printable.h"
#include "core/text/text.h"
#include "core/text/units.h"
#include "launch/observe/monitor/idle_device.h"

namespace lockstep {
namespace {

constexpr const char* kRow = "{:>4} {:<7} {:<10} {:>5} {:>11} {:>4} {:>4} {:>9} {:>4} {:>4} {:>5}";
constexpr const char* kNoFigure = "-";

std::string clock_text(double seconds_since_1970) {
  return fmt::format("{:%H:%M:%S}", fmt::localtime(static_cast<std::time_t>(seconds_since_1970)));
}

// The time of day; with the date if it is 12 h ago or more.
std::string since_text(double moment, double now) {
  constexpr double kLately = 12 * 3600;
  if (now - moment < kLately) return clock_text(moment);
  return fmt::format("{:%Y-%m-%d %H:%M}", fmt::localtime(static_cast<std::time_t>(moment)));
}

std::string age_text(double seconds) {
  if (seconds < 9.95) return fmt::format("{:.1f}s", seconds);
  if (seconds < 600) return fmt::format("{:.0f}s", seconds);
  if (seconds < 36000) return fmt::format("{:.0f}m", seconds / 60);
  return fmt::format("{:.0f}h", seconds / 3600);
}

std::string percent_text(double share) {
  return std::isfinite(share) ? fmt::format("{:.0f}%", 100 * share) : kNoFigure;
}

// "12/469"; only the first number if that exceeds the width.
std::string part_text(std::int64_t part, std::int64_t whole, std::size_t width) {
  if (part == 0 && whole == 0) return kNoFigure;
  const std::string text = fmt::format("{}/{}", part, whole);
  return text.size() <= width ? text : fmt::format("{}", part);
}

std::string row_of(const SeenRank& rank, std::int64_t now) {
  const RankProgress& progress = rank.progress;
  const bool hold = figures_hold(rank, now);
  const auto share = [&](double value) { return hold ? percent_text(value) : kNoFigure; };
  const double total = progress.account.total();
  const double samples = progress.samples_per_second / static_cast<double>(rank.identity.ranks);
  const std::string device = rank.identity.device.str();
  return fmt::format(
      fmt::runtime(kRow), rank.identity.rank, device.empty() ? kNoFigure : device, state_of(rank),
      progress.epoch == 0 ? kNoFigure : part_text(progress.epoch, rank.identity.epochs, 5),
      part_text(progress.epoch_step, progress.epoch_steps, 11), share(progress.busy), share(progress.peak),
      hold ? short_number(samples) : kNoFigure, share(progress.account[Phase::data_wait] / total),
      share(progress.account[Phase::exposed_communication] / total),
      progress.step_ns > 0 ? age_text(seconds_between(progress.step_ns, now)) : kNoFigure);
}

std::string job_line(const SeenJob& job, const NodeView& view) {
  const SeenRank& speaker = job.speaker();
  const RankIdentity& identity = speaker.identity;
  std::string line = fmt::format("{} since {}, {}", identity.model.str(),
                                 since_text(identity.since, view.time), counted(identity.ranks, "rank"));
  if (static_cast<std::size_t>(identity.ranks) != job.ranks.size())
    line += fmt::format(" ({} here)", job.ranks.size());
  if (figures_hold(speaker, view.time_ns)) {
    line += fmt::format(", {} samples/s", short_number(speaker.progress.samples_per_second));
    if (std::isfinite(speaker.progress.loss)) line += fmt::format(", loss {:.4f}", speaker.progress.loss);
  }
  return line + ", in " + identity.run_dir.str();
}

std::string device_line(const std::string& device, const DeviceFigures& figures) {
  std::string line = device + ":";
  if (figures.utilization) line += fmt::format(" utilization {:.0f} %,", *figures.utilization);
  if (figures.memory_used_bytes && figures.memory_bytes)
    line +=
        fmt::format(" memory {:.1f} of {:.1f} GiB,", static_cast<double>(*figures.memory_used_bytes) / kGiB,
                    static_cast<double>(*figures.memory_bytes) / kGiB);
  if (figures.watts) line += fmt::format(" {:.0f} W,", *figures.watts);
  if (figures.celsius) line += fmt::format(" {:.0f} C,", *figures.celsius);
  return line + " " + figures.name;
}

// A remark on a rank that adds to its row; empty: none.
std::string remark_of(const SeenRank& rank, const NodeView& view, double idle_seconds) {
  const std::int64_t number = rank.identity.rank;
  if (rank.life == RankLife::died)
    return fmt::format("rank {} died after step {}: process {} was killed or failed, last activity {} ago",
                       number, rank.progress.step, rank.identity.process,
                       age_text(rank.progress.quiet_seconds(view.time_ns)));
  if (const auto idle = idle_device(rank, view, idle_seconds))
    return fmt::format("rank {} holds {} idle: {}", number, describe_device(rank.identity), idle->why);
  if (rank.waits)
    return fmt::format("rank {} has been in {} for {:.0f} s", number, rank.waits->what, rank.waits->seconds);
  return {};
}

// The last line of a job without a living rank.
std::string end_of(const SeenJob& job, const NodeView& view) {
  std::int64_t step = 0;
  double quiet = std::numeric_limits<double>::max();
  for (const SeenRank& rank : job.ranks) {
    step = std::max(step, rank.progress.step);
    quiet = std::min(quiet, rank.progress.quiet_seconds(view.time_ns));
  }
  return fmt::format("died after step {}: its processes were killed or failed, last activity {} ago", step,
                     age_text(quiet));
}

}  // namespace

std::string table_of(const NodeView& view, double idle_seconds, const Terminal& terminal) {
  std::string text;
  const auto add_line = [&](const std::string& line) {
    text += fitted(printable_line(line), terminal) + '\n';
  };
  add_line(fmt::format("{} {}", view.host, clock_text(view.time)));
  if (view.silent_seconds > 0)
    add_line(fmt::format("no values for {}: the job was killed, or its node or the folder cannot be reached",
                         age_text(view.silent_seconds)));
  for (const SeenJob& job : view.jobs) {
    text += '\n';
    add_line(job_line(job, view));
    if (job.died()) {
      add_line(end_of(job, view));
      continue;
    }
    text += fmt::format(fmt::runtime(kRow), "rank", "device", "state", "epoch", "step", "busy", "peak",
                        "samples/s", "data", "comm", "last") +
            '\n';
    for (const SeenRank& rank : job.ranks) text += printable_line(row_of(rank, view.time_ns)) + '\n';
    for (const SeenRank& rank : job.ranks) {
      const auto device = view.devices.find(rank.identity.device_uuid.str());
      if (device != view.devices.end()) add_line(device_line(rank.identity.device.str(), device->second));
    }
    for (const SeenRank& rank : job.ranks) {
      const std::string remark = remark_of(rank, view, idle_seconds);
      if (!remark.empty()) add_line(remark);
      for (const DeviceContext& context : idle_contexts(rank, view))
        add_line(fmt::format("rank {} holds GPU {} idle: it has a context on this GPU, but computes on {}",
                             rank.identity.rank, context.pci_bus_id, rank.identity.device.str()));
    }
  }
  return text;
}

}  // namespace lockstep
