// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/prometheus/node_metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "core/text/text.h"

namespace lockstep {
namespace {

using enum MetricType;
using Value = std::optional<double>;

// Converts now_ns() of the node to seconds since 1970, and back.
struct MetricClock {
  double time = 0;
  std::int64_t ns = 0;
  // Empty for 0, which means no moment.
  Value time_of(std::int64_t moment_ns) const {
    if (moment_ns == 0) return std::nullopt;
    constexpr double kPerSecond = 1000;
    return std::round((time + seconds_between(ns, moment_ns)) * kPerSecond) / kPerSecond;
  }
  std::int64_t ns_of(double moment) const {
    constexpr double kMostSeconds = 1e9;
    return ns + static_cast<std::int64_t>(1e9 * std::clamp(moment - time, -kMostSeconds, kMostSeconds));
  }
};

// A clock for what is read from a file. All its moments are positive.
constexpr std::int64_t kReadersNow = 2'000'000'000'000'000'000;

// The figure as a whole number; 0 for a number that is not one of Lockstep's.
std::int64_t whole(double value) {
  constexpr double kMost = 9e15;
  return value >= -kMost && value <= kMost ? static_cast<std::int64_t>(value) : 0;
}
// The figure as a moment or an interval in seconds; 0 for one that no clock shows.
double clock_seconds(double value) {
  constexpr double kMost = 3e10;  // the year 2920
  return value >= 0 && value <= kMost ? value : 0;
}
Value count_of(std::int64_t count) { return static_cast<double>(count); }
Value bytes_of(const std::optional<std::uint64_t>& bytes) {
  return bytes ? Value(static_cast<double>(*bytes)) : std::nullopt;
}
std::uint64_t bytes_from(double value) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, whole(value)));
}
Value finite(double value) { return std::isfinite(value) ? Value(value) : std::nullopt; }
Value share_of(const Value& percent) { return percent ? Value(*percent / 100) : std::nullopt; }

// A figure of a job, and of the node's monitor.
struct JobFigure {
  MetricFamily family;
  Value (*get)(const NodeMetrics& metrics);
  void (*set)(NodeMetrics& metrics, double value);
};

// Times of other figures are relative to the first one.
constexpr std::array kJobFigures = {
    JobFigure{{"lockstep_sample_timestamp_seconds", gauge, "Time of this sample, in seconds since 1970."},
              [](const NodeMetrics& metrics) { return Value(metrics.view.time); },
              [](NodeMetrics& metrics, double value) { metrics.view.time = clock_seconds(value); }},
    JobFigure{{"lockstep_sample_interval_seconds", gauge, "Time between two samples (run.monitor_seconds)."},
              [](const NodeMetrics& metrics) { return Value(metrics.interval_seconds); },
              [](NodeMetrics& metrics, double value) { metrics.interval_seconds = clock_seconds(value); }},
    JobFigure{{"lockstep_start_timestamp_seconds", gauge, "Start of the job, in seconds since 1970."},
              [](const NodeMetrics& metrics) { return Value(metrics.job.since); },
              [](NodeMetrics& metrics, double value) { metrics.job.since = clock_seconds(value); }},
    JobFigure{{"lockstep_ranks", gauge, "Ranks of the job on all nodes."},
              [](const NodeMetrics& metrics) { return count_of(metrics.job.ranks); },
              [](NodeMetrics& metrics, double value) {
                metrics.job.ranks = std::max<std::int64_t>(1, whole(value));
              }},
    JobFigure{{"lockstep_epochs", gauge, "Epochs that the training has when it is done."},
              [](const NodeMetrics& metrics) { return count_of(metrics.job.epochs); },
              [](NodeMetrics& metrics, double value) { metrics.job.epochs = whole(value); }},
    JobFigure{{"lockstep_global_batch_samples", gauge, "Samples of a step on all ranks."},
              [](const NodeMetrics& metrics) { return count_of(metrics.job.global_batch); },
              [](NodeMetrics& metrics, double value) { metrics.job.global_batch = whole(value); }},
};

// A figure of a rank. Figures of the last second are empty once they are no longer current.
struct RankFigure {
  MetricFamily family;
  bool of_window;
  Value (*get)(const SeenRank& rank, const MetricClock& clock);
  void (*set)(SeenRank& rank, double value, const MetricClock& clock);
};

double step_seconds(const RankProgress& progress) {
  return progress.account.total() / static_cast<double>(std::max<std::int64_t>(1, progress.window_steps));
}

#define RANK_FIGURE(name, type, help, of_window, got, ...)                                              \
  RankFigure {                                                                                          \
    {name, type, help}, of_window,                                                                      \
        []([[maybe_unused]] const SeenRank& rank, [[maybe_unused]] const MetricClock& clock) -> Value { \
          [[maybe_unused]] const RankProgress& progress = rank.progress;                                \
          return got;                                                                                   \
        },                                                                                              \
        []([[maybe_unused]] SeenRank& rank, double value, [[maybe_unused]] const MetricClock& clock) {  \
          [[maybe_unused]] RankProgress& progress = rank.progress;                                      \
          __VA_ARGS__;                                                                                  \
        }                                                                                               \
  }

constexpr std::array kRankFigures = {
    RANK_FIGURE("lockstep_step", gauge, "Number of the last completed step of the training.", false,
                count_of(progress.step), progress.step = progress.window_step = whole(value)),
    RANK_FIGURE("lockstep_steps_total", counter, "Steps since the job began; not those before a resume.",
                false, count_of(progress.own_steps), progress.own_steps = whole(value)),
    RANK_FIGURE("lockstep_epoch", gauge, "Current epoch, from 1; 0: none yet.", false,
                count_of(progress.epoch), progress.epoch = whole(value)),
    RANK_FIGURE("lockstep_epoch_step", gauge, "Completed steps of the current epoch.", false,
                count_of(progress.epoch_step), progress.epoch_step = whole(value)),
    RANK_FIGURE("lockstep_epoch_steps", gauge, "Steps of the current epoch when it ends.", false,
                count_of(progress.epoch_steps), progress.epoch_steps = whole(value)),
    RANK_FIGURE("lockstep_last_step_timestamp_seconds", gauge, "End of the last step, in seconds since 1970.",
                false, clock.time_of(progress.step_ns), progress.step_ns = clock.ns_of(value)),
    RANK_FIGURE("lockstep_activity_timestamp_seconds", gauge,
                "Start of the current state of the training, in seconds since 1970.", false,
                clock.time_of(progress.activity_ns), progress.activity_ns = clock.ns_of(value)),
    RANK_FIGURE("lockstep_idle_since_timestamp_seconds", gauge,
                "Since when the device computes for less than 5 % of the time; absent while it is busier.",
                false, clock.time_of(progress.idle_since_ns), progress.idle_since_ns = clock.ns_of(value)),
    RANK_FIGURE("lockstep_collective_wait_seconds", gauge,
                "Time for which the rank has waited in one collective; 0 if less than a second.", false,
                rank.waits ? rank.waits->seconds : 0,
                if (value > 0) rank.waits = CollectiveWait{.what = "a collective", .seconds = value}),
    RANK_FIGURE("lockstep_test_loss", gauge, "Loss of the last evaluation, of all ranks together.", false,
                finite(progress.test_loss), progress.test_loss = value),
    RANK_FIGURE("lockstep_test_accuracy_ratio", gauge,
                "Accuracy of the last evaluation, of all ranks together.", false,
                finite(progress.test_accuracy), progress.test_accuracy = value),
    RANK_FIGURE("lockstep_busy_ratio", gauge,
                "Share of the last second's steps in which the device computed.", true, finite(progress.busy),
                progress.busy = value),
    RANK_FIGURE("lockstep_peak_ratio", gauge,
                "Samples per second over the rate at which the device could compute (run.measure_peak).",
                true, finite(progress.peak), progress.peak = value),
    RANK_FIGURE("lockstep_samples_per_second", gauge,
                "Samples that this rank trained per second, in the last second; the sum is the job's rate.",
                true, finite(progress.samples_per_second / static_cast<double>(rank.identity.ranks)),
                progress.samples_per_second = value * static_cast<double>(rank.identity.ranks)),
    RANK_FIGURE("lockstep_loss", gauge, "Mean loss of this rank's samples in the last second's steps.", true,
                finite(progress.loss), progress.loss = value),
    RANK_FIGURE("lockstep_learning_rate", gauge, "Learning rate of the last step.", true,
                finite(progress.learning_rate), progress.learning_rate = value),
    RANK_FIGURE("lockstep_step_seconds", gauge, "Mean time of the last second's steps.", true,
                finite(step_seconds(progress)), progress.account[Phase::rest] = std::clamp(value, 0.0, 1e9)),
};

#undef RANK_FIGURE

constexpr MetricFamily kRunInfo = {"lockstep_run_info", gauge, "Always 1; its labels describe the job."};
constexpr MetricFamily kRankInfo = {"lockstep_rank_info", gauge,
                                    "Always 1; its labels describe the process and the device of a rank."};
constexpr MetricFamily kRankState = {"lockstep_rank_state", gauge,
                                     "1 for the state that the rank is in, and 0 for the other states."};
constexpr MetricFamily kPhaseRatio = {
    "lockstep_phase_ratio", gauge,
    "Share of the last second's steps by phase; exposed_communication: nothing hides it."};
constexpr MetricFamily kPhaseSeconds = {
    "lockstep_phase_seconds_total", counter,
    "Time by phase since the job began; rest includes evaluations and reports."};
constexpr MetricFamily kWarnings = {"lockstep_warnings_total", counter,
                                    "Warnings since the job began; kind idle: a device was idle or slow "
                                    "(events.jsonl), straggler: a rank was."};

// A figure of a GPU, and how `lockstep monitor` reads it; null: it does not.
struct DeviceFigure {
  MetricFamily family;
  Value (*get)(const DeviceFigures& device);
  void (*set)(DeviceFigures& device, double value);
};

constexpr std::array kDeviceFigures = {
    DeviceFigure{{"lockstep_gpu_utilization_ratio", gauge, "Share of time in which any kernel ran."},
                 [](const DeviceFigures& device) { return share_of(device.utilization); },
                 [](DeviceFigures& device, double value) { device.utilization = 100 * value; }},
    DeviceFigure{{"lockstep_gpu_memory_used_bytes", gauge, "Used memory of the GPU or its slice."},
                 [](const DeviceFigures& device) { return bytes_of(device.memory_used_bytes); },
                 [](DeviceFigures& device, double value) { device.memory_used_bytes = bytes_from(value); }},
    DeviceFigure{{"lockstep_gpu_memory_size_bytes", gauge, "Memory of the GPU or its slice."},
                 [](const DeviceFigures& device) { return bytes_of(device.memory_bytes); },
                 [](DeviceFigures& device, double value) { device.memory_bytes = bytes_from(value); }},
    DeviceFigure{{"lockstep_gpu_power_watts", gauge, "Power of the whole GPU."},
                 [](const DeviceFigures& device) { return device.watts; },
                 [](DeviceFigures& device, double value) { device.watts = value; }},
    DeviceFigure{
        {"lockstep_gpu_energy_joules_total", counter, "Energy of the whole GPU since its driver was loaded."},
        [](const DeviceFigures& device) { return device.joules; },
        nullptr},
    DeviceFigure{{"lockstep_gpu_temperature_celsius", gauge, "Temperature of the whole GPU."},
                 [](const DeviceFigures& device) { return device.celsius; },
                 [](DeviceFigures& device, double value) { device.celsius = value; }},
    DeviceFigure{{"lockstep_gpu_clock_hertz", gauge, "Clock of the multiprocessors."},
                 [](const DeviceFigures& device) {
                   return device.sm_mhz ? Value(1e6 * *device.sm_mhz) : std::nullopt;
                 },
                 nullptr},
    DeviceFigure{{"lockstep_gpu_sm_active_ratio", gauge,
                  "Share of busy multiprocessors, since the sample before (Hopper and later)."},
                 [](const DeviceFigures& device) { return share_of(device.sm_activity); },
                 nullptr},
    DeviceFigure{{"lockstep_gpu_tensor_active_ratio", gauge,
                  "Share of busy tensor cores, since the sample before (Hopper and later)."},
                 [](const DeviceFigures& device) { return share_of(device.tensor_activity); },
                 nullptr},
    DeviceFigure{{"lockstep_gpu_memory_bandwidth_ratio", gauge,
                  "Share of the memory's bandwidth in use, since the sample before (Hopper and later)."},
                 [](const DeviceFigures& device) { return share_of(device.memory_activity); },
                 nullptr},
};

struct HostFigure {
  MetricFamily family;
  Value (*get)(const HostFigures& host);
};

constexpr std::array kHostFigures = {
    HostFigure{{"lockstep_host_cpu_ratio", gauge, "Use of all cores since the sample before."},
               [](const HostFigures& host) { return share_of(host.processor); }},
    HostFigure{{"lockstep_host_job_cpu_ratio", gauge, "The part of all cores that this job uses."},
               [](const HostFigures& host) { return share_of(host.job_processor); }},
    HostFigure{{"lockstep_host_memory_used_bytes", gauge, "Memory of the machine that is not available."},
               [](const HostFigures& host) { return bytes_of(host.memory_used_bytes); }},
    HostFigure{{"lockstep_host_memory_size_bytes", gauge, "Memory of the machine."},
               [](const HostFigures& host) { return bytes_of(host.memory_bytes); }},
    HostFigure{{"lockstep_host_energy_joules_total", counter,
                "Energy of the processor packages since the training began, where it can be read."},
               [](const HostFigures& host) { return host.joules; }},
};

// The states of state_of(SeenRank): those of the training, and those that are seen from outside.
constexpr std::array<std::string_view, 3> kOuterStates = {"waiting", "stopped", "died"};

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
  void add(const MetricFamily& family, const MetricLabels& labels, const Value& value) {
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
      const auto add_state = [&](std::string_view state) {
        page_.sample(with(of_rank(rank), "state", std::string(state)), state_of(rank) == state ? 1 : 0);
      };
      std::ranges::for_each(kActivityWords, add_state);
      std::ranges::for_each(kOuterStates, add_state);
    }
    for (const RankFigure& figure : kRankFigures) {
      page_.family(figure.family);
      for (const SeenRank& rank : ranks_) {
        if (figure.of_window && !figures_hold(rank, clock_.ns)) continue;
        if (const Value value = figure.get(rank, clock_)) page_.sample(of_rank(rank), *value);
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
    const auto number = number_from<std::int64_t>(label(sample, "rank"));
    if (!number) return;
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

std::string to_prometheus(const NodeMetrics& metrics) { return MetricWriter(metrics).write(); }

std::optional<NodeMetrics> metrics_from(std::string_view text) { return MetricReader(text).read(); }

std::vector<MetricFamily> metric_families() {
  std::vector<MetricFamily> all = {kRunInfo, kRankInfo, kRankState, kPhaseRatio, kPhaseSeconds, kWarnings};
  const auto add = [&](const auto& table) {
    for (const auto& figure : table) all.push_back(figure.family);
  };
  add(kJobFigures);
  add(kRankFigures);
  add(kDeviceFigures);
  add(kHostFigures);
  return all;
}

}  // namespace lockstep
