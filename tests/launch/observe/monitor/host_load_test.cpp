// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/monitor/host_load.h"

#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "core/system/processor_time.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

// The system files of a simulated machine.
class HostFiles : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((folder_.path() / name).parent_path());
    std::ofstream(folder_.path() / name) << text;
  }
  void processor(int user, int idle) const {
    write("proc/stat", "cpu  " + std::to_string(user) + " 5 10 " + std::to_string(idle) +
                           " 0 1 2 3 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n");
  }
  // Received and sent bytes by network interface.
  using Bytes = std::map<std::string, std::pair<int, int>>;
  void networks(const Bytes& interfaces) const {
    std::string text = "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes packets\n";
    for (const auto& [name, bytes] : interfaces)
      text += "  " + name + ":" + std::to_string(bytes.first) + " 1 0 0 0 0 0 0 " +
              std::to_string(bytes.second) + " 1 0 0 0 0 0 0\n";
    write("proc/net/dev", text);
  }
  void network(int received, int sent) const {
    networks({{"lo", {99999, 99999}}, {"eth0", {received, sent}}, {"eth1", {1, 2}}});
  }
  // Creates entries such as "eth0/device". In /sys they are links.
  void links(const std::vector<std::string>& names) const {
    for (const std::string& name : names)
      std::filesystem::create_directories(folder_.path() / "sys/class/net" / name);
  }
  void default_routes(const std::vector<std::string>& names) const {
    std::string text = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\n";
    for (const std::string& name : names)
      text += name + "\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\t0\n" + name +
              "\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\n";
    write("proc/net/route", text);
  }
  // Sent over received bytes, by the rates of a sample.
  double sent_per_received(const Bytes& interfaces) const {
    Bytes none = interfaces;
    for (auto& [name, bytes] : none) bytes = {0, 0};
    networks(none);
    HostLoad load({}, folder_.path());
    load.sample();
    networks(interfaces);
    const HostFigures figures = load.sample();
    return figures.network_sent.value() / figures.network_received.value();
  }

  TemporaryFolder folder_;
};

TEST_F(HostFiles, MissingFilesGiveNoFigures) {
  HostLoad load({getpid()}, folder_.path());
  const HostFigures figures = load.sample();
  EXPECT_FALSE(figures.processor || figures.job_processor || figures.memory_bytes ||
               figures.memory_used_bytes || figures.network_received || figures.network_sent ||
               figures.joules);
}

TEST_F(HostFiles, ProcessorShareExcludesIdleTime) {
  processor(100, 1000);
  write("proc/7/stat", "7 (a (b) c d) S 1 1 1 0 -1 4194560 1 2 3 4 30 10 0 0 20 0 1 0 5 6 7\n");
  HostLoad load({7, 8}, folder_.path());
  EXPECT_FALSE(load.sample().processor) << "nothing to compare with";
  EXPECT_FALSE(load.sample().processor) << "no time has passed";
  processor(160, 1140);
  write("proc/7/stat", "7 (a (b) c d) S 1 1 1 0 -1 4194560 1 2 3 4 60 20 0 0 20 0 1 0 5 6 7\n");
  const HostFigures figures = load.sample();
  EXPECT_DOUBLE_EQ(figures.processor.value(), 30);
  EXPECT_DOUBLE_EQ(figures.job_processor.value(), 20);
}

// The idle time of a core that is unplugged may be counted anew.
TEST_F(HostFiles, ProcessorShareStartsAnewAfterADecrease) {
  processor(100, 1'000'000);
  HostLoad load({}, folder_.path());
  load.sample();
  processor(150, 1000);
  EXPECT_FALSE(load.sample().processor);
  processor(200, 1050);
  EXPECT_DOUBLE_EQ(load.sample().processor.value(), 50);
}

TEST_F(HostFiles, UsedMemoryExcludesAvailableMemory) {
  write("proc/meminfo", "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\n");
  const HostFigures figures = HostLoad({}, folder_.path()).sample();
  EXPECT_EQ(figures.memory_bytes, 1000u * 1024);
  EXPECT_EQ(figures.memory_used_bytes, 600u * 1024);
}

TEST_F(HostFiles, NetworkRatesExcludeTheLoopback) {
  network(1000, 2000);
  HostLoad load({}, folder_.path());
  EXPECT_FALSE(load.sample().network_received) << "nothing to compare with";
  network(4000, 3000);
  const HostFigures figures = load.sample();
  EXPECT_NEAR(figures.network_received.value() / figures.network_sent.value(), 3, 1e-9);
  network(0, 0);  // the counters were reset
  EXPECT_FALSE(load.sample().network_received);
}

TEST_F(HostFiles, NetworkRatesExcludeTheEarlierBytesOfAnInterfaceThatAppears) {
  networks({{"eth0", {0, 0}}});
  HostLoad load({}, folder_.path());
  load.sample();
  networks({{"eth0", {1000, 3000}}, {"eth1", {1'000'000, 0}}});
  HostFigures figures = load.sample();
  EXPECT_NEAR(figures.network_sent.value() / figures.network_received.value(), 3, 1e-9);
  networks({{"eth1", {1'001'000, 5000}}});
  figures = load.sample();
  EXPECT_NEAR(figures.network_sent.value() / figures.network_received.value(), 5, 1e-9)
      << "without the interface that was removed";
}

// In these tests the counted interfaces receive 1000 bytes and send 3000.
TEST_F(HostFiles, NetworkBytesThroughBondsBridgesAndVlansCountOnce) {
  links({"eth0/device", "eth0/master", "eth1/device", "eth1/master", "bond0/lower_eth0", "bond0/lower_eth1",
         "bond0.7/lower_bond0", "docker0/lower_veth1", "veth1/master"});
  default_routes({"bond0.7"});
  EXPECT_NEAR(sent_per_received({{"lo", {7000, 0}},
                                 {"eth0", {1000, 0}},
                                 {"eth1", {0, 3000}},
                                 {"bond0", {7000, 0}},
                                 {"bond0.7", {7000, 0}},
                                 {"docker0", {7000, 0}},
                                 {"veth1", {7000, 0}}}),
              3, 1e-9);
}

TEST_F(HostFiles, NetworkBytesOfContainersAndTunnelsCountAtTheHardware) {
  links({"eth0/device", "cali1", "wg0", "tap0/tun_flags"});
  const Bytes interfaces = {
      {"eth0", {1000, 3000}}, {"cali1", {7000, 0}}, {"wg0", {7000, 0}}, {"tap0", {7000, 0}}};
  default_routes({"eth0", "wg0"});
  EXPECT_NEAR(sent_per_received(interfaces), 3, 1e-9);
  write("sys/class/net/wg0/type", "65534\n");
  write("sys/class/net/tap0/type", "1\n");
  for (const char* tunnel : {"wg0", "tap0"}) {
    default_routes({tunnel});
    EXPECT_NEAR(sent_per_received(interfaces), 3, 1e-9) << tunnel;
  }
}

// The default route is that of a bridge of Open vSwitch, which no link connects with its members.
TEST_F(HostFiles, NetworkBytesOfASwitchCountAtItsMember) {
  links({"eth0/device", "eth0/master", "ovs-system/lower_eth0", "br-ex"});
  default_routes({"br-ex"});
  EXPECT_NEAR(sent_per_received({{"eth0", {1000, 3000}}, {"ovs-system", {0, 0}}, {"br-ex", {7000, 0}}}), 3,
              1e-9);
}

TEST_F(HostFiles, NetworkBytesOfHardwareInHardwareCountOnce) {
  links({"eth0/device", "eth0/lower_eth1", "eth1/device", "eth1/master/device"});
  default_routes({"eth0"});
  EXPECT_NEAR(sent_per_received({{"eth0", {1000, 3000}}, {"eth1", {7000, 0}}}), 3, 1e-9);
}

TEST_F(HostFiles, NetworkBytesInAContainerAreThoseOfItsVirtualInterfaces) {
  links({"eth0", "eth1", "eth1.5/lower_eth1"});
  default_routes({"eth0"});
  EXPECT_NEAR(sent_per_received({{"eth0", {1000, 0}}, {"eth1", {0, 3000}}, {"eth1.5", {7000, 0}}}), 3, 1e-9);
}

TEST_F(HostFiles, NetworkBytesInAContainerWithHardwareIncludeItsDefaultRoute) {
  links({"eth0", "net1/device"});
  default_routes({"eth0"});
  EXPECT_NEAR(sent_per_received({{"eth0", {1000, 0}}, {"net1", {0, 3000}}}), 3, 1e-9);
}

TEST_F(HostFiles, EnergyAddsUpPackagesAndHandlesWraparound) {
  const auto package = [&](const std::string& name, const std::string& microjoules) {
    write("sys/class/powercap/" + name + "/energy_uj", microjoules);
    write("sys/class/powercap/" + name + "/max_energy_range_uj", "10000000");
  };
  package("intel-rapl:0", "9000000");
  package("intel-rapl:1", "1000000");
  package("intel-rapl:0:0", "0");  // a part of the first package
  package("intel-rapl:2", "0");    // the whole board
  write("sys/class/powercap/intel-rapl:2/name", "psys\n");
  HostLoad load({}, folder_.path());
  EXPECT_EQ(load.sample().joules, 0);
  package("intel-rapl:0", "1000000");
  package("intel-rapl:1", "1500000");
  package("intel-rapl:0:0", "9999999");
  package("intel-rapl:2", "9999999");
  EXPECT_DOUBLE_EQ(load.sample().joules.value(), 2.5);
}

TEST_F(HostFiles, EnergyReadBetweenSamplesIsCounted) {
  const auto counter = [&](const std::string& microjoules) {
    write("sys/class/powercap/intel-rapl:0/energy_uj", microjoules);
  };
  write("sys/class/powercap/intel-rapl:0/max_energy_range_uj", "10000000");
  counter("1000000");
  HostLoad load({}, folder_.path());
  counter("9000000");
  load.read_joules();
  counter("2000000");  // wrapped; a sample alone would count 1 J
  EXPECT_DOUBLE_EQ(load.sample().joules.value(), 11);
}

TEST(HostLoad, ThisMachineHasPlausibleFigures) {
  if (!std::filesystem::exists("/proc/stat")) GTEST_SKIP() << "there is no /proc";
  HostLoad load({getpid()});
  load.sample();
  volatile double busy = 0;
  for (const double begin = processor_seconds(); processor_seconds() - begin < 0.3;)
    for (int i = 0; i < 10000; ++i) busy = busy + std::sqrt(i);
  const HostFigures figures = load.sample();
  ASSERT_TRUE(figures.processor && figures.job_processor);
  EXPECT_GT(*figures.job_processor, 0);
  EXPECT_LE(*figures.processor, 100);
  EXPECT_GE(*figures.processor * 1.3 + 5, *figures.job_processor);
  ASSERT_TRUE(figures.memory_bytes && figures.memory_used_bytes);
  EXPECT_NEAR(static_cast<double>(*figures.memory_bytes),
              static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE)),
              0.05 * static_cast<double>(*figures.memory_bytes));
  EXPECT_GT(*figures.memory_used_bytes, 0u);
  EXPECT_LT(*figures.memory_used_bytes, *figures.memory_bytes);
}

}  // namespace
}  // namespace lockstep
