// SPDX-License-Identifier: Apache-2.0
//
// The table of metrics of NodeMetrics: the name, the meaning, and how a figure is written and read. For
// node_metrics.cpp, node_metrics_reader.cpp and their test only.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>

#include "core/text/text.h"
#include "launch/observe/prometheus/exposition.h"
#include "launch/observe/prometheus/node_metrics.h"

namespace lockstep::metric_table {

using enum MetricType;
using MetricValue = std::optional<double>;

// Converts now_ns() of the node to seconds since 1970, and back.
struct MetricClock {
  double time = 0;
  std::int64_t ns = 0;
  // Empty for 0, which means no moment.
  MetricValue time_of(std::int64_t moment_ns) const {
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
inline constexpr std::int64_t kReadersNow = 2'000'000'000'000'000'000;

// The figure as a whole number; 0 for a number that is not one of Lockstep's.
inline std::int64_t whole(double value) {
  constexpr double kMost = 9e15;
  return value >= -kMost && value <= kMost ? static_cast<std::int64_t>(value) : 0;
}
// The figure as a moment or an interval in seconds; 0 for one that no clock shows.
inline double clock_seconds(double value) {
  constexpr double kMost = 3e10;  // the year 2920
  return value >= 0 && value <= kMost ? value : 0;
}
inline MetricValue count_of(std::int64_t count) { return static_cast<double>(count); }
// Empty for 0: not known yet.
inline MetricValue known_count(std::int64_t count) { return count > 0 ? count_of(count) : std::nullopt; }
inline MetricValue bytes_of(const std::optional<std::uint64_t>& bytes) {
  return bytes ? MetricValue(static_cast<double>(*bytes)) : std::nullopt;
}
inline std::uint64_t bytes_from(double value) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, whole(value)));
}
inline MetricValue finite(double value) { return std::isfinite(value) ? MetricValue(value) : std::nullopt; }
inline MetricValue share_of(const MetricValue& percent) {
  return percent ? MetricValue(*percent / 100) : std::nullopt;
}

// A figure of a job, and of the node's monitor.
struct JobFigure {
  MetricFamily family;
  MetricValue (*get)(const NodeMetrics& metrics);
  void (*set)(NodeMetrics& metrics, double value);
};

// Times of other figures are relative to the first one.
inline constexpr std::array kJobFigures = {
    JobFigure{{"lockstep_sample_timestamp_seconds", gauge, "Time of this sample, in seconds since 1970."},
              [](const NodeMetrics& metrics) { return MetricValue(metrics.view.time); },
              [](NodeMetrics& metrics, double value) { metrics.view.time = clock_seconds(value); }},
    JobFigure{{"lockstep_sample_interval_seconds", gauge, "Time between two samples (run.monitor_seconds)."},
              [](const NodeMetrics& metrics) { return MetricValue(metrics.interval_seconds); },
              [](NodeMetrics& metrics, double value) { metrics.interval_seconds = clock_seconds(value); }},
    JobFigure{{"lockstep_start_timestamp_seconds", gauge, "Start of the job, in seconds since 1970."},
              [](const NodeMetrics& metrics) { return MetricValue(metrics.job.since); },
              [](NodeMetrics& metrics, double value) { metrics.job.since = clock_seconds(value); }},
    JobFigure{{"lockstep_ranks", gauge, "Ranks of the job on all nodes."},
              [](const NodeMetrics& metrics) { return count_of(metrics.job.ranks); },
              [](NodeMetrics& metrics, double value) {
                metrics.job.ranks = std::max<std::int64_t>(1, whole(value));
              }},
    JobFigure{{"lockstep_epochs", gauge, "Epochs that the training has when it is done."},
              [](const NodeMetrics& metrics) { return known_count(metrics.job.epochs); },
              [](NodeMetrics& metrics, double value) { metrics.job.epochs = whole(value); }},
    JobFigure{{"lockstep_global_batch_samples", gauge, "Samples of a step on all ranks."},
              [](const NodeMetrics& metrics) { return known_count(metrics.job.global_batch); },
              [](NodeMetrics& metrics, double value) { metrics.job.global_batch = whole(value); }},
};

// A figure of a rank. Figures of the last second are empty once they are no longer current.
struct RankFigure {
  MetricFamily family;
  bool of_window;
  MetricValue (*get)(const SeenRank& rank, const MetricClock& clock);
  void (*set)(SeenRank& rank, double value, const MetricClock& clock);
};

#define RANK_FIGURE(name, type, help, of_window, got, ...)                                             \
  RankFigure {                                                                                         \
    {name, type, help}, of_window,                                                                     \
        []([[maybe_unused]] const SeenRank& rank,                                                      \
           [[maybe_unused]] const MetricClock& clock) -> MetricValue {                                 \
          [[maybe_unused]] const RankProgress& progress = rank.progress;                               \
          return got;                                                                                  \
        },                                                                                             \
        []([[maybe_unused]] SeenRank& rank, double value, [[maybe_unused]] const MetricClock& clock) { \
          [[maybe_unused]] RankProgress& progress = rank.progress;                                     \
          __VA_ARGS__;                                                                                 \
        }                                                                                              \
  }

inline constexpr std::array kRankFigures = {
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
                finite(progress.step_seconds()), progress.account[Phase::rest] = std::clamp(value, 0.0, 1e9)),
};

#undef RANK_FIGURE

inline constexpr MetricFamily kRunInfo = {"lockstep_run_info", gauge,
                                          "Always 1; its labels describe the job."};
inline constexpr MetricFamily kRankInfo = {
    "lockstep_rank_info", gauge, "Always 1; its labels describe the process and the device of a rank."};
inline constexpr MetricFamily kRankState = {
    "lockstep_rank_state", gauge, "1 for the state that the rank is in, and 0 for the other states."};
inline constexpr MetricFamily kPhaseRatio = {
    "lockstep_phase_ratio", gauge,
    "Share of the last second's steps by phase; exposed_communication: nothing hides it."};
inline constexpr MetricFamily kPhaseSeconds = {
    "lockstep_phase_seconds_total", counter,
    "Time by phase since the job began. On a CPU, rest includes evaluations and reports; on a GPU, rest and "
    "device_wait are 0."};
inline constexpr MetricFamily kWarnings = {
    "lockstep_warnings_total", counter,
    "Warnings since the job began; kind idle: a device was idle or slow "
    "(events.jsonl), straggler: a rank was."};

// A figure of a GPU, and how `lockstep monitor` reads it; null: it does not.
struct DeviceFigure {
  MetricFamily family;
  MetricValue (*get)(const DeviceFigures& device);
  void (*set)(DeviceFigures& device, double value);
};

inline constexpr std::array kDeviceFigures = {
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
                   return device.sm_mhz ? MetricValue(1e6 * *device.sm_mhz) : std::nullopt;
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
  MetricValue (*get)(const HostFigures& host);
};

inline constexpr std::array kHostFigures = {
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

// The states of a rank: its activities, and those that are seen from outside. A rank that waits keeps its
// activity; lockstep_collective_wait_seconds tells that it waits.
inline constexpr std::array<std::string_view, 2> kOuterStates = {"stopped", "died"};

}  // namespace lockstep::metric_table
