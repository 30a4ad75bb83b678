// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/monitor/monitor_sums.h"

#include <type_traits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

static_assert(std::is_trivially_copyable_v<MonitorSums>, "ranks send them to each other");

nlohmann::json parsed(const MonitorSums& sums, const EnergyTerms& terms = {}) {
  return nlohmann::json::parse(json_of({.sums = sums, .terms = terms}).dump());
}

MonitorSums node(double utilization, std::optional<double> joules) {
  MonitorSums sums;
  sums.nodes = 1;
  sums.devices = 1;
  sums.nvml = true;
  sums.seconds = 10;
  sums.samples = 1;
  sums.device_joules = joules;
  sums.add(DeviceFigures{.celsius = utilization / 2, .utilization = utilization, .clock_reasons = 5});
  return sums;
}

TEST(MonitorSums, ReportMeansAndMaxima) {
  MonitorSums sums;
  sums.nodes = sums.devices = 1;
  sums.samples = 2;
  sums.seconds = 2;
  sums.add(DeviceFigures{.celsius = 70, .utilization = 90, .memory_used_bytes = 20, .clock_reasons = 1});
  sums.add(DeviceFigures{.celsius = 60, .memory_used_bytes = 10, .clock_reasons = 0x40, .sm_activity = 50});
  sums.add(HostFigures{.processor = 30, .memory_bytes = 400, .memory_used_bytes = 100});
  sums.add(HostFigures{.processor = 50, .memory_bytes = 400, .memory_used_bytes = 300, .network_sent = 7});
  const nlohmann::json json = parsed(sums);
  EXPECT_EQ(json["utilization"], 0.9) << "mean of the samples with a value";
  EXPECT_EQ(json["sm_activity"], 0.5);
  EXPECT_TRUE(json["tensor_activity"].is_null());
  EXPECT_EQ(json["celsius"], 70);
  EXPECT_EQ(json["memory_used_bytes"], 20);
  EXPECT_TRUE(json["memory_bytes"].is_null());
  EXPECT_EQ(json["clock_reasons"], nlohmann::json({"hw_thermal_slowdown"}))
      << "an idle device is not slowed down";
  EXPECT_EQ(json["host"]["processor"], 0.4);
  EXPECT_EQ(json["host"]["memory_used_bytes"], 300);
  EXPECT_EQ(json["host"]["sent_bytes_per_second"], 7);
  EXPECT_EQ(json["provider"], "none");
}

TEST(MonitorSums, ConvertEnergyToPowerAndCost) {
  MonitorSums sums = node(90, 5.4e6);
  sums.host_joules = 1.8e6;
  sums.seconds = 3600;
  const nlohmann::json json = parsed(sums, {.samples = 7.2e7, .price_per_kwh = 0.25});
  EXPECT_EQ(json["joules"], 7.2e6);
  EXPECT_EQ(json["device_joules"], 5.4e6);
  EXPECT_EQ(json["host"]["joules"], 1.8e6);
  EXPECT_EQ(json["watts"], 2000);
  EXPECT_EQ(json["kwh"], 2);
  EXPECT_EQ(json["samples_per_joule"], 10);
  EXPECT_EQ(json["cost"], 0.5);
  EXPECT_FALSE(parsed(sums).contains("cost"));
}

TEST(MonitorSums, UnknownDeviceEnergyMakesTheSumNull) {
  MonitorSums sums = node(90, std::nullopt);
  sums.host_joules = 10;
  const nlohmann::json json = parsed(sums, {.samples = 1, .price_per_kwh = 1});
  for (const char* key : {"joules", "watts", "kwh", "samples_per_joule", "cost"})
    EXPECT_TRUE(json[key].is_null()) << key;
  sums.devices = 0;
  EXPECT_EQ(parsed(sums)["joules"], 10) << "without devices the host's energy is the sum";
}

TEST(MonitorSums, AddUpOverNodes) {
  MonitorSums all;
  all += MonitorSums{};
  all += node(80, 100);
  all += MonitorSums{};  // a rank that monitors nothing
  all += node(100, 50);
  const nlohmann::json json = parsed(all);
  EXPECT_EQ(json["nodes"], 2);
  EXPECT_EQ(json["devices"], 2);
  EXPECT_EQ(json["provider"], "nvml");
  EXPECT_EQ(json["utilization"], 0.9);
  EXPECT_EQ(json["device_joules"], 150);
  EXPECT_EQ(json["watts"], 15);
  EXPECT_EQ(json["celsius"], 50);
  all += node(90, std::nullopt);
  EXPECT_TRUE(parsed(all)["joules"].is_null());
}

TEST(MonitorSums, AddUpTheHostsOfNodesWithoutDevices) {
  const auto host = [](std::optional<double> joules) {
    MonitorSums sums;
    sums.nodes = 1;
    sums.seconds = 10;
    sums.host_joules = joules;
    return sums;
  };
  MonitorSums all = host(1.8e6);
  all += host(3.6e6);
  const nlohmann::json json = parsed(all, {.samples = 1, .price_per_kwh = 0.25});
  EXPECT_EQ(json["host"]["joules"], 5.4e6);
  EXPECT_EQ(json["joules"], 5.4e6);
  EXPECT_EQ(json["kwh"], 1.5);
  EXPECT_EQ(json["cost"], 0.375);
  all += host(std::nullopt);
  EXPECT_TRUE(parsed(all)["joules"].is_null());
  MonitorSums mixed = node(80, 100);
  mixed += host(5);
  EXPECT_EQ(parsed(mixed)["device_joules"], 100);
}

using Seconds = std::chrono::seconds;

TEST(EnergyMeter, ReadingsAddUpToTheCounter) {
  EnergyMeter meter;
  const EnergyMeter::Clock::time_point begin{};
  EXPECT_FALSE(meter.take(begin));
  meter.add(begin, 1000, 100);
  EXPECT_DOUBLE_EQ(meter.take(begin + Seconds(1)).value(), 100)
      << "estimated from the power of the last sample";
  meter.add(begin + Seconds(2), 1180, 80);
  EXPECT_DOUBLE_EQ(meter.take(begin + Seconds(2)).value(), 80);
  EXPECT_DOUBLE_EQ(meter.take(begin + Seconds(3)).value(), 80);
  meter.add(begin + Seconds(4), 1200, 10);  // less than estimated, so the sum falls
  EXPECT_DOUBLE_EQ(meter.take(begin + Seconds(4)).value(), 0);
  EXPECT_DOUBLE_EQ(meter.take(begin + Seconds(8)).value(), 0);
  EXPECT_DOUBLE_EQ(meter.take(begin + Seconds(12)).value(), 20);
}

TEST(EnergyMeter, SampleWithoutTheCounterLosesNoEnergy) {
  const EnergyMeter::Clock::time_point begin{};
  EnergyMeter meter;
  meter.add(begin, 1000, 100);
  meter.add(begin + Seconds(2), std::nullopt, 100);
  meter.add(begin + Seconds(4), 1400, 100);
  meter.add(begin + Seconds(6), 1600, 0);
  EXPECT_DOUBLE_EQ(meter.take(begin + Seconds(6)).value(), 600);
}

TEST(EnergyMeter, SilentDeviceHasNoEnergyUntilItsNextSample) {
  const EnergyMeter::Clock::time_point begin{};
  EnergyMeter meter;
  meter.add(begin, 1000, 100);
  meter.add(begin + Seconds(2), std::nullopt, std::nullopt);
  EXPECT_FALSE(meter.take(begin + Seconds(4)));
  meter.add(begin + Seconds(6), 1600, 50);
  EXPECT_DOUBLE_EQ(meter.take(begin + Seconds(6)).value(), 200) << "without the interval that had no answer";
}

TEST(EnergyMeter, WorksWithPowerOrCounterAlone) {
  const EnergyMeter::Clock::time_point begin{};
  EnergyMeter power;
  power.add(begin, std::nullopt, 100);
  power.add(begin + Seconds(2), std::nullopt, 50);
  EXPECT_DOUBLE_EQ(power.take(begin + Seconds(3)).value(), 250);
  EnergyMeter counter;
  counter.add(begin, 5, std::nullopt);
  counter.add(begin + Seconds(2), 25, std::nullopt);
  EXPECT_DOUBLE_EQ(counter.take(begin + Seconds(3)).value(), 30);
  counter.add(begin + Seconds(4), 1, std::nullopt);  // the driver was reloaded
  EXPECT_DOUBLE_EQ(counter.take(begin + Seconds(4)).value(), 0);
  EXPECT_FALSE(EnergyMeter().take(begin));
}

}  // namespace
}  // namespace lockstep
