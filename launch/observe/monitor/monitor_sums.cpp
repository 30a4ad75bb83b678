// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/monitor/monitor_sums.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "launch/observe/account/account_json.h"

namespace lockstep {
namespace {

nlohmann::ordered_json share_of(const MonitorMean& percent) {
  const auto mean = percent.mean();
  return json_or_null(mean ? std::optional(*mean / 100) : std::nullopt);
}
nlohmann::ordered_json bytes_or_null(std::uint64_t bytes) {
  return bytes > 0 ? nlohmann::ordered_json(bytes) : nlohmann::ordered_json();
}

std::optional<double> sum_of(std::optional<double> a, std::optional<double> b) {
  return a && b ? std::optional(*a + *b) : std::nullopt;
}

}  // namespace

void MonitorSums::add(const DeviceFigures& device) {
  utilization.add(device.utilization);
  memory_utilization.add(device.memory_utilization);
  sm_activity.add(device.sm_activity);
  tensor_activity.add(device.tensor_activity);
  memory_activity.add(device.memory_activity);
  memory_used_bytes = std::max(memory_used_bytes, device.memory_used_bytes.value_or(0));
  memory_bytes = std::max(memory_bytes, device.memory_bytes.value_or(0));
  celsius = std::max(celsius, device.celsius.value_or(0));
  clock_reasons |= device.clock_reasons.value_or(0);
}

void MonitorSums::add(const HostFigures& host) {
  processor.add(host.processor);
  job_processor.add(host.job_processor);
  host_memory_used_bytes = std::max(host_memory_used_bytes, host.memory_used_bytes.value_or(0));
  host_memory_bytes = std::max(host_memory_bytes, host.memory_bytes.value_or(0));
  network_received.add(host.network_received);
  network_sent.add(host.network_sent);
}

MonitorSums& MonitorSums::operator+=(const MonitorSums& other) {
  if (other.nodes == 0) return *this;
  if (nodes == 0) return *this = other;
  if (devices > 0 && other.devices > 0)
    device_joules = sum_of(device_joules, other.device_joules);
  else if (other.devices > 0)
    device_joules = other.device_joules;
  host_joules = sum_of(host_joules, other.host_joules);
  nodes += other.nodes;
  devices += other.devices;
  slices += other.slices;
  nvml = nvml || other.nvml;
  seconds = std::max(seconds, other.seconds);
  samples = std::min(samples, other.samples);
  for (MonitorMean MonitorSums::*mean :
       {&MonitorSums::utilization, &MonitorSums::memory_utilization, &MonitorSums::sm_activity,
        &MonitorSums::tensor_activity, &MonitorSums::memory_activity, &MonitorSums::processor,
        &MonitorSums::job_processor, &MonitorSums::network_received, &MonitorSums::network_sent})
    this->*mean += other.*mean;
  for (std::uint64_t MonitorSums::*most :
       {&MonitorSums::memory_used_bytes, &MonitorSums::memory_bytes, &MonitorSums::host_memory_used_bytes,
        &MonitorSums::host_memory_bytes})
    this->*most = std::max(this->*most, other.*most);
  celsius = std::max(celsius, other.celsius);
  clock_reasons |= other.clock_reasons;
  return *this;
}

std::optional<double> MonitorSums::joules() const {
  if (devices == 0) return host_joules;
  if (!device_joules) return std::nullopt;
  return *device_joules + host_joules.value_or(0);
}

nlohmann::ordered_json json_of(const MonitoredEpoch& epoch) {
  constexpr double kJoulesPerKwh = 3.6e6;
  const auto& [sums, terms] = epoch;
  const std::optional<double> joules = sums.joules();
  const auto over = [&](double divisor) {
    return json_or_null(joules && divisor > 0 ? std::optional(*joules / divisor) : std::nullopt);
  };
  nlohmann::ordered_json object = {
      {"provider", sums.nvml ? "nvml" : "none"},
      {"nodes", sums.nodes},
      {"devices", sums.devices},
      {"slices", sums.slices},
      {"samples", sums.samples},
      {"seconds", sums.seconds},
      {"utilization", share_of(sums.utilization)},
      {"memory_utilization", share_of(sums.memory_utilization)},
      {"sm_activity", share_of(sums.sm_activity)},
      {"tensor_activity", share_of(sums.tensor_activity)},
      {"memory_activity", share_of(sums.memory_activity)},
      {"memory_used_bytes", bytes_or_null(sums.memory_used_bytes)},
      {"memory_bytes", bytes_or_null(sums.memory_bytes)},
      {"celsius", json_or_null(sums.celsius > 0 ? std::optional(sums.celsius) : std::nullopt)},
      {"clock_reasons", clock_reason_words(sums.clock_reasons & ~kClocksOfIdleDevice)},
      {"device_joules", json_or_null(sums.device_joules)},
      {"host",
       {{"processor", share_of(sums.processor)},
        {"job_processor", share_of(sums.job_processor)},
        {"memory_used_bytes", bytes_or_null(sums.host_memory_used_bytes)},
        {"memory_bytes", bytes_or_null(sums.host_memory_bytes)},
        {"received_bytes_per_second", json_or_null(sums.network_received.mean())},
        {"sent_bytes_per_second", json_or_null(sums.network_sent.mean())},
        {"joules", json_or_null(sums.host_joules)}}},
      {"joules", json_or_null(joules)},
      {"watts", over(sums.seconds)},
      {"kwh", over(kJoulesPerKwh)},
      {"samples_per_joule",
       json_or_null(joules && *joules > 0 ? std::optional(terms.samples / *joules) : std::nullopt)}};
  if (terms.price_per_kwh > 0) object["cost"] = over(kJoulesPerKwh / terms.price_per_kwh);
  return object;
}

void EnergyMeter::add(Clock::time_point now, std::optional<double> joules, std::optional<double> watts) {
  silent_ = !joules && !watts;
  if (silent_) return;
  const double seconds = at_ ? std::chrono::duration<double>(now - *at_).count() : 0;
  if (joules) {
    // The sample before may lack the counter.
    const double since = counter_ ? std::max(0.0, *joules - *counter_) : watts_ * seconds;
    joules_ += since;
    if (!watts && seconds > 0) watts = since / seconds;
  } else {
    joules_ += watts_ * seconds;
  }
  counter_ = joules;
  watts_ = std::max(0.0, watts.value_or(0));
  at_ = now;
}

std::optional<double> EnergyMeter::take(Clock::time_point now) {
  if (!at_) return std::nullopt;
  const double estimate = joules_ + watts_ * std::chrono::duration<double>(now - *at_).count();
  const double since = std::max(0.0, estimate - taken_);
  taken_ += since;
  return silent_ ? std::nullopt : std::optional(since);
}

}  // namespace lockstep
