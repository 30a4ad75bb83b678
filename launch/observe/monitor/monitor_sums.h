// SPDX-License-Identifier: Apache-2.0
//
// MonitorSums: sums of a monitor's samples of devices and machines over an interval, such as an epoch.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include <nlohmann/json_fwd.hpp>

#include "launch/observe/monitor/host_load.h"
#include "launch/observe/monitor/nvml.h"

namespace lockstep {

struct MonitorMean {
  double sum = 0;
  std::int64_t count = 0;
  void add(std::optional<double> value) {
    if (value) *this += MonitorMean{*value, 1};
  }
  MonitorMean& operator+=(const MonitorMean& other) {
    sum += other.sum;
    count += other.count;
    return *this;
  }
  std::optional<double> mean() const {
    return count > 0 ? std::optional(sum / static_cast<double>(count)) : std::nullopt;
  }
};

// Trivially copyable, so that ranks can exchange them (gather_values).
struct MonitorSums {
  std::int32_t nodes = 0, devices = 0, slices = 0;
  bool nvml = false;         // available on at least one node
  double seconds = 0;        // length of the interval
  std::int64_t samples = 0;  // per node; the minimum over nodes
  // Per cent, over samples and devices.
  MonitorMean utilization, memory_utilization, sm_activity, tensor_activity, memory_activity;
  std::uint64_t memory_used_bytes = 0, memory_bytes = 0;  // maximum of any device; 0: unknown
  double celsius = 0;                                     // maximum; 0: unknown
  std::uint64_t clock_reasons = 0;                        // bits seen on any device
  std::optional<double> device_joules;                    // sum of all devices
  // Figures of the machines.
  MonitorMean processor, job_processor;
  std::uint64_t host_memory_used_bytes = 0, host_memory_bytes = 0;
  MonitorMean network_received, network_sent;
  std::optional<double> host_joules;  // all processor packages

  void add(const DeviceFigures& device);  // adds a device's sample
  void add(const HostFigures& host);
  // Adds other nodes of the same interval. An energy sum is empty if a node does not report it.
  MonitorSums& operator+=(const MonitorSums& other);

  // Energy of devices plus that of processor packages if known. Empty if that of devices is unknown.
  std::optional<double> joules() const;
};

struct EnergyTerms {
  double samples = 0;        // trained in the interval
  double price_per_kwh = 0;  // 0: not given
};

struct MonitoredEpoch {
  MonitorSums sums;
  EnergyTerms terms;
};

// {provider, nodes, devices, slices, samples, seconds, utilization, memory_utilization, sm_activity,
// tensor_activity, memory_activity, memory_used_bytes, memory_bytes, celsius, clock_reasons, device_joules,
// host {processor, job_processor, memory_used_bytes, memory_bytes, received_bytes_per_second,
// sent_bytes_per_second, joules}, joules, watts, kwh, samples_per_joule, cost}. Shares range from 0 to 1.
// Unknown values are null. Without a price, cost is omitted.
nlohmann::ordered_json json_of(const MonitoredEpoch& epoch);

// Integrates energy from samples. take() may be called between samples, even if epochs are shorter than the
// sample interval.
class EnergyMeter {
 public:
  using Clock = std::chrono::steady_clock;

  // Adds a sample: an energy counter that never decreases, and power. One of them is enough.
  void add(Clock::time_point now, std::optional<double> joules, std::optional<double> watts);
  // Joules since the last take(), extrapolated from the last sample with the latest power. An overestimate
  // reduces the next results. Empty before the first sample with energy or power, and while the last sample
  // has neither.
  std::optional<double> take(Clock::time_point now);

 private:
  std::optional<Clock::time_point> at_;  // time of the last sample with energy or power
  bool silent_ = false;                  // the last sample had neither
  std::optional<double> counter_;
  double watts_ = 0;
  double joules_ = 0;  // up to that sample
  double taken_ = 0;
};

}  // namespace lockstep
