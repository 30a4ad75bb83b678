// SPDX-License-Identifier: Apache-2.0
//
// MonitorSums: what a monitor saw of devices and machines over a while, as an epoch is told of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "launch/monitor/host_load.h"
#include "launch/monitor/nvml.h"

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

// Numbers alone, so that ranks can send them to each other (gather_values).
struct MonitorSums {
  std::int32_t nodes = 0, devices = 0, slices = 0;
  bool nvml = false;         // on some node
  double seconds = 0;        // that it was
  std::int64_t samples = 0;  // of each node
  // Per cent, over samples and devices.
  MonitorMean utilization, memory_utilization, sm_activity, tensor_activity, memory_activity;
  std::uint64_t memory_used_bytes = 0, memory_bytes = 0;  // the most of a device; 0: not known
  double celsius = 0;                                     // the most; 0: not known
  std::uint64_t clock_reasons = 0;                        // that were seen on some device
  std::optional<double> device_joules;                    // of all of them
  // Of machines.
  MonitorMean processor, job_processor;
  std::uint64_t host_memory_used_bytes = 0, host_memory_bytes = 0;
  MonitorMean network_received, network_sent;
  std::optional<double> host_joules;  // of processor packages

  void add(const DeviceFigures& device);  // a sample's
  void add(const HostFigures& host);
  // Of other nodes over the same time. What one of them does not tell of energy, the sum does not.
  MonitorSums& operator+=(const MonitorSums& other);

  // What was measured of both: devices, and processor packages where the system tells. Nothing where there
  // are devices that do not tell.
  std::optional<double> joules() const;
};

struct EnergyTerms {
  double samples = 0;        // that were trained meanwhile
  double price_per_kwh = 0;  // 0: nobody said
};

// {provider, nodes, devices, slices, samples, seconds, utilization, memory_utilization, sm_activity,
// tensor_activity, memory_activity, memory_used_bytes, memory_bytes, celsius, clock_reasons, device_joules,
// host {processor, job_processor, memory_used_bytes, memory_bytes, received_bytes_per_second,
// sent_bytes_per_second, joules}, joules, watts, kwh, samples_per_joule, cost}: shares from 0 to 1; what is
// not known is null, and cost left out without a price. An object of JSON.
std::string to_json(const MonitorSums& sums, const EnergyTerms& terms = {});

// Adds up what something took, and says at any time what that is, also between two samples, which lie as long
// apart as an epoch may last.
class EnergyMeter {
 public:
  using Clock = std::chrono::steady_clock;

  // A sample: a counter that only grows, and power. One of them is enough.
  void add(Clock::time_point now, std::optional<double> joules, std::optional<double> watts);
  // Since the last take(), with the latest power from the last sample on. What is too much comes off the
  // next. Nothing where no sample told.
  std::optional<double> take(Clock::time_point now);

 private:
  std::optional<Clock::time_point> at_;  // of the last sample that told
  std::optional<double> counter_;
  double watts_ = 0;
  double joules_ = 0;  // up to that sample
  double taken_ = 0;
};

}  // namespace lockstep
