// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/monitor/nvml.h"

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "tests/launch/observe/monitor/nvml_stub.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using Words = std::vector<std::string>;

class NvmlFigures : public testing::Test {
 protected:
  void SetUp() override { stub_.say_all(); }
  DeviceFigures once(const std::string& uuid, const std::string& address = "") {
    const Nvml nvml(LOCKSTEP_NVML_STUB);
    EXPECT_EQ(nvml.problem(), "");
    return NvmlDevice(nvml, uuid, address).sample();
  }
  // Samples until the device's counters, which need two samples some time apart, report a value.
  DeviceFigures counted(NvmlDevice& device) {
    DeviceFigures figures;
    while (!figures.tensor_activity) {
      figures = device.sample();
      std::this_thread::yield();
    }
    return figures;
  }

  NvmlStub stub_;
};

TEST(NvmlLibrary, MissingLibraryIsReported) {
  const Nvml absent("libthere-is-none.so.1");
  EXPECT_NE(absent.problem().find("libthere-is-none.so.1"), std::string::npos) << absent.problem();
  const DeviceFigures figures = NvmlDevice(absent, "GPU-one", "0000:3b:00.0").sample();
  EXPECT_EQ(figures.name, "");
  EXPECT_FALSE(figures.utilization || figures.watts || figures.memory_bytes);
}

TEST(NvmlLibrary, WrongLibraryIsReported) {
  const Nvml other("libm.so.6");
  expect_parts(other.problem(), {"libm.so.6", "nvmlInit_v2"});
}

TEST_F(NvmlFigures, UnloadedDriverIsReported) {
  stub_.say("init!", "9");
  const Nvml nvml(LOCKSTEP_NVML_STUB);
  expect_parts(nvml.problem(), {"nvmlInit_v2", "Something Else"});
}

TEST_F(NvmlFigures, AreReadByUuid) {
  stub_.say("2.power", "70000");
  const DeviceFigures one = once("GPU-one"), two = once("GPU-two");
  EXPECT_EQ(one.name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(one.pci_bus_id, "00000000:3B:00.0");
  EXPECT_EQ(two.pci_bus_id, "00000000:86:00.0");
  EXPECT_EQ(one.driver_version, "580.65.06");
  EXPECT_FALSE(one.slice);
  EXPECT_EQ(one.performance_state, 0u);
  EXPECT_EQ(one.pcie_generation_most, 5u);
  EXPECT_EQ(one.pcie_generation, 4u);
  EXPECT_EQ(one.celsius, 61);
  EXPECT_EQ(one.utilization, 97);
  EXPECT_EQ(one.memory_utilization, 42);
  EXPECT_EQ(one.memory_bytes, 85520809984u);
  EXPECT_EQ(one.memory_used_bytes, 10737418240u) << "without the memory that the driver reserves";
  EXPECT_EQ(one.memory_free_bytes, 85520809984u - 10737418240u - 546308096u);
  EXPECT_DOUBLE_EQ(one.watts.value(), 654.321);
  EXPECT_DOUBLE_EQ(two.watts.value(), 70);
  EXPECT_DOUBLE_EQ(one.joules.value(), 123456.789);
  EXPECT_EQ(one.sm_mhz, 1980u);
  EXPECT_EQ(one.sm_mhz_most, 1980u);
  EXPECT_EQ(one.memory_mhz, 2619u);
  EXPECT_EQ(one.clock_reasons, 4u);
  EXPECT_DOUBLE_EQ(one.pcie_sent.value(), 2097e3);
  EXPECT_DOUBLE_EQ(one.pcie_received.value(), 1048e3);
  EXPECT_FALSE(one.sm_activity);
}

TEST_F(NvmlFigures, UnknownUuidFallsBackToThePciAddress) {
  const DeviceFigures figures = once("GPU-unknown", "0000:86:00.0");
  EXPECT_EQ(figures.pci_bus_id, "00000000:86:00.0");
  EXPECT_EQ(once("GPU-unknown", "0000:ff:00.0").name, "");
}

TEST_F(NvmlFigures, RefusedFiguresAreOmitted) {
  stub_.say({{"power!", "3"}, {"utilization.gpu!", "15"}, {"pstate", "32"}});
  const DeviceFigures figures = once("GPU-one");
  EXPECT_FALSE(figures.watts || figures.utilization || figures.memory_utilization);
  EXPECT_FALSE(figures.performance_state) << "32 means unknown";
  EXPECT_TRUE(figures.joules && figures.celsius);
}

TEST_F(NvmlFigures, LostDeviceHasNone) {
  const Nvml nvml(LOCKSTEP_NVML_STUB);
  NvmlDevice device(nvml, "GPU-one", "");
  EXPECT_TRUE(device.sample().utilization);
  for (const char* key :
       {"pstate", "pcie.max", "pcie.current", "temperature", "utilization.gpu", "memory.total", "power",
        "energy", "clock.sm", "clock.memory", "reasons", "pcie.sent", "pcie.received"})
    stub_.say(std::string(key) + "!", "15");
  const DeviceFigures lost = device.sample();
  EXPECT_EQ(lost.name, "NVIDIA H100 80GB HBM3");
  EXPECT_FALSE(lost.utilization || lost.memory_bytes || lost.watts || lost.joules || lost.celsius ||
               lost.performance_state || lost.clock_reasons || lost.pcie_sent);
}

TEST_F(NvmlFigures, OldLibraryReportsWhatItSupports) {
  const Nvml old(LOCKSTEP_OLD_NVML_STUB);
  EXPECT_EQ(old.problem(), "");
  const DeviceFigures figures = NvmlDevice(old, "GPU-one", "").sample();
  EXPECT_EQ(figures.name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(figures.pci_bus_id, "");
  EXPECT_EQ(figures.celsius, 61);
  EXPECT_EQ(figures.memory_used_bytes, 10737418240u + 546308096u)
      << "the old function includes reserved memory";
  EXPECT_EQ(figures.clock_reasons, 4u);
  EXPECT_EQ(figures.utilization, 97);
  EXPECT_FALSE(figures.joules || figures.sm_mhz || figures.pcie_sent || figures.nvlink_sent ||
               figures.sm_activity);
}

TEST_F(NvmlFigures, NvlinkRateComesFromItsCounter) {
  const Nvml nvml(LOCKSTEP_NVML_STUB);
  NvmlDevice device(nvml, "GPU-one", "");
  stub_.say({{"field.138", "1000"}, {"field.139", "2000"}});  // KiB
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(device.sample().nvlink_sent);
  stub_.say({{"field.138", "1000000"}, {"field.139", "4000000"}});
  const DeviceFigures figures = device.sample();
  const std::chrono::duration<double> most = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(figures.nvlink_sent.value(), 999000 * 1024.0 / most.count());
  EXPECT_NEAR(figures.nvlink_received.value() / figures.nvlink_sent.value(), 3998.0 / 999, 1e-6);
  stub_.say("field.138", "0");  // the counter was reset
  EXPECT_FALSE(device.sample().nvlink_sent);
}

TEST_F(NvmlFigures, GpmCountersCoverTheTimeBetweenTwoSamples) {
  stub_.say({{"1.gpm", "yes"}, {"gpm.2", "88.5"}, {"gpm.5", "41.25"}, {"gpm.10", "63"}});
  stub_.say({{"gpm.20", "10"}, {"gpm.21", "20"}, {"gpm.60", "300"}, {"gpm.61", "400"}});
  const Nvml nvml(LOCKSTEP_NVML_STUB);
  NvmlDevice device(nvml, "GPU-one", "");
  EXPECT_FALSE(device.sample().sm_activity);
  const DeviceFigures figures = counted(device);
  EXPECT_EQ(figures.sm_activity, 88.5);
  EXPECT_EQ(figures.tensor_activity, 41.25);
  EXPECT_EQ(figures.memory_activity, 63);
  EXPECT_EQ(figures.pcie_sent, 10 * 1048576.0) << "from the GPM counters, not from a sample of 20 ms";
  EXPECT_EQ(figures.pcie_received, 20 * 1048576.0);
  EXPECT_EQ(figures.nvlink_received, 300 * 1048576.0);
  EXPECT_EQ(figures.nvlink_sent, 400 * 1048576.0);
}

TEST_F(NvmlFigures, RefusedGpmCountersAreReplacedOrOmitted) {
  stub_.say({{"1.gpm", "yes"}, {"gpm.2", "nan"}, {"gpm.5", "41"}});
  const Nvml nvml(LOCKSTEP_NVML_STUB);
  NvmlDevice device(nvml, "GPU-one", "");
  const DeviceFigures figures = counted(device);
  EXPECT_FALSE(figures.sm_activity || figures.memory_activity);
  EXPECT_EQ(figures.tensor_activity, 41);
  EXPECT_DOUBLE_EQ(figures.pcie_sent.value(), 2097e3);
}

// NVML reports no utilisation of slices, but the counters of their instance.
TEST_F(NvmlFigures, SliceReportsItsOwnFiguresIfAvailable) {
  stub_.say({{"1.gpm", "yes"}, {"gpm.2", "99"}, {"gpm.7.2", "55"}, {"gpm.7.5", "5"}, {"gpm.7.10", "6"}});
  const Nvml nvml(LOCKSTEP_NVML_STUB);
  NvmlDevice device(nvml, "MIG-three", "");
  const DeviceFigures figures = counted(device);
  EXPECT_TRUE(figures.slice);
  EXPECT_EQ(figures.name, "NVIDIA H100 80GB HBM3 MIG 1g.10gb");
  EXPECT_EQ(figures.pci_bus_id, "00000000:3B:00.0");
  EXPECT_FALSE(figures.utilization || figures.memory_utilization || figures.pcie_sent);
  EXPECT_EQ(figures.sm_activity, 55);
  EXPECT_EQ(figures.memory_used_bytes, 1073741824u);
  EXPECT_DOUBLE_EQ(figures.watts.value(), 654.321) << "the power of the whole device";
}

TEST(ClockReasons, HaveNames) {
  EXPECT_EQ(clock_reason_words(0), Words{});
  EXPECT_EQ(clock_reason_words(kClocksOfIdleDevice), Words{"gpu_idle"});
  EXPECT_EQ(clock_reason_words(0x4 | 0x8 | 0x20 | 0x40 | 0x80),
            (Words{"sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown",
                   "hw_power_brake_slowdown"}));
  EXPECT_EQ(clock_reason_words(0x100 | 0x8000), (Words{"display_clock_setting", "0x8000"}));
}

}  // namespace
}  // namespace lockstep
