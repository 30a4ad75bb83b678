// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/monitor/monitor.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <regex>
#include <system_error>
#include <thread>

#include <gtest/gtest.h>
#include <sched.h>

#include "core/files/file_text.h"
#include "core/system/processor_name.h"
#include "launch/observe/monitor/background_thread.h"
#include "launch/observe/monitor/monitor_file.h"
#include "tests/launch/observe/monitor/nvml_stub.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNvidiaSmi =
    "timestamp, name, pci.bus_id, driver_version, pstate, pcie.link.gen.max, pcie.link.gen.current, "
    "temperature.gpu, utilization.gpu [%], utilization.memory [%], memory.total [MiB], memory.free [MiB], "
    "memory.used [MiB]";

using Table = std::vector<std::vector<std::string>>;

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  for (std::size_t begin = 0;;) {
    const std::size_t end = line.find(", ", begin);
    cells.push_back(line.substr(begin, end - begin));
    if (end == std::string::npos) return cells;
    begin = end + 2;
  }
}

Table table_in(const fs::path& path) {
  Table table;
  for (const std::string& line : lines_of(file_text(path))) table.push_back(cells_of(line));
  return table;
}

std::string cell_of(const Table& table, std::size_t row, const std::string& column) {
  const auto found = std::ranges::find(table.at(0), column);
  return found == table.at(0).end() ? "no such column"
                                    : table.at(row).at(static_cast<std::size_t>(found - table[0].begin()));
}

class Monitor : public testing::Test {
 protected:
  void SetUp() override { stub_.say_all(); }
  fs::path file() const { return folder_.path() / "run" / "monitor.csv"; }
  MonitorOptions options() const {
    return {.file = file(), .every_seconds = 1000, .ranks = "0 1", .nvml_library = LOCKSTEP_NVML_STUB};
  }
  MonitorOptions with_devices() const {
    MonitorOptions all = options();
    all.devices = {{.uuid = "GPU-one", .pci_address = "0000:3b:00.0", .name = "one", .ranks = "0"},
                   {.uuid = "GPU-two", .pci_address = "0000:86:00.0", .name = "two", .ranks = "1 2"}};
    return all;
  }
  // Runs a monitor for two samples (start and end). Returns what the first one saw.
  static MonitorSums run(const MonitorOptions& options) {
    MonitorSums sums;
    {
      DeviceMonitor monitor(options);
      wait_until([&] { return (sums = monitor.take()).samples > 0; });
    }
    wait_for_end();
    return sums;
  }
  // The destructor waits at most 2 s for the monitor's thread.
  static void wait_for_end() {
    wait_until([] {
      std::error_code ended;
      for (const auto& task : fs::directory_iterator("/proc/self/task", ended))
        if (file_text(task.path() / "comm") == "ls-monitor\n") return false;
      return true;
    });
  }
  static void wait_until(const std::function<bool()>& holds) {
    while (!holds()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // Waits for `count` more rows.
  void wait_for_rows(std::size_t count) const {
    const std::size_t wanted = table_in(file()).size() + count;
    wait_until([&] { return table_in(file()).size() >= wanted; });
  }

  NvmlStub stub_;
  TemporaryFolder folder_;
};

// On a busy machine a thread with SCHED_IDLE gets no core for seconds. If its process is killed, the process
// keeps its locks and memory until that thread has run again.
TEST(BackgroundThread, GetsACoreOnABusyMachine) {
  if (sched_getscheduler(0) == SCHED_IDLE)
    GTEST_SKIP() << "not every user may raise the priority of this test";
  int policy = SCHED_IDLE;
  start_background_thread("ls-test", [&] { policy = sched_getscheduler(0); }).join();
  EXPECT_NE(policy, SCHED_IDLE);
}

// A thread that starts after a disk was unmounted must not create its folder again.
TEST_F(Monitor, OnlyTheConstructorCreatesTheFolder) {
  {
    const DeviceMonitor monitor(options());
    ASSERT_TRUE(fs::exists(file().parent_path()));
    fs::rename(file().parent_path(), folder_.path() / "away");
  }
  EXPECT_FALSE(fs::exists(file().parent_path())) << "the last sample has no file";
}

TEST_F(Monitor, HeaderStartsWithTheColumnsOfNvidiaSmi) {
  EXPECT_EQ(monitor_header().substr(0, kNvidiaSmi.size()), kNvidiaSmi);
  EXPECT_EQ(monitor_header().substr(kNvidiaSmi.size()),
            ", ranks, power.draw [W], energy [J], clocks.sm [MHz], clocks.memory [MHz], clocks.reasons, "
            "pcie.received [MiB/s], pcie.sent [MiB/s], nvlink.received [MiB/s], nvlink.sent [MiB/s], "
            "gpm.sm [%], gpm.tensor [%], gpm.memory [%], host.processor [%], host.job [%], "
            "host.memory.used [MiB], host.memory.total [MiB], host.network.received [MiB/s], "
            "host.network.sent [MiB/s], host.energy [J]\n");
}

TEST_F(Monitor, WritesARowForEachDeviceAsNvidiaSmiDoes) {
  stub_.say("2.utilization.gpu!", "3");
  run(with_devices());
  const Table table = table_in(file());
  ASSERT_EQ(table.size(), 1u + 2 * 2);
  EXPECT_EQ(file_text(file()).substr(0, monitor_header().size()), monitor_header());
  for (std::size_t row = 1; row < table.size(); ++row) {
    ASSERT_EQ(table[row].size(), table[0].size());
    EXPECT_TRUE(std::regex_match(table[row][0], std::regex(R"(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3})")))
        << table[row][0];
  }
  const std::vector<std::string> expected = {"NVIDIA H100 80GB HBM3",
                                             "00000000:3B:00.0",
                                             "580.65.06",
                                             "P0",
                                             "5",
                                             "4",
                                             "61",
                                             "97 %",
                                             "42 %",
                                             "81559 MiB",
                                             "70798 MiB",
                                             "10240 MiB"};
  EXPECT_EQ(std::vector(table[1].begin() + 1, table[1].begin() + 13), expected);
  EXPECT_EQ(cell_of(table, 2, "pci.bus_id"), "00000000:86:00.0");
  EXPECT_EQ(cell_of(table, 2, "utilization.gpu [%]"), "[N/A]");
  EXPECT_EQ(cell_of(table, 2, "ranks"), "1 2");
  EXPECT_EQ(cell_of(table, 1, "power.draw [W]"), "654.32 W");
  EXPECT_EQ(cell_of(table, 1, "energy [J]"), "123456.789 J");
  EXPECT_EQ(cell_of(table, 1, "clocks.sm [MHz]"), "1980 MHz");
  EXPECT_EQ(cell_of(table, 1, "clocks.reasons"), "sw_power_cap");
  EXPECT_EQ(cell_of(table, 1, "pcie.sent [MiB/s]"), "2.00 MiB/s");
  EXPECT_EQ(cell_of(table, 1, "gpm.sm [%]"), "[N/A]");
  EXPECT_TRUE(cell_of(table, 1, "host.memory.total [MiB]").ends_with(" MiB"));
}

TEST_F(Monitor, WritesHostFiguresWithoutDevices) {
  const MonitorSums sums = run(options());
  const Table table = table_in(file());
  ASSERT_EQ(table.size(), 3u);
  EXPECT_EQ(cell_of(table, 1, "name"), processor_name());
  EXPECT_EQ(cell_of(table, 1, "ranks"), "0 1");
  for (std::size_t column = 2; column < 13; ++column) EXPECT_EQ(table[1][column], "[N/A]");
  EXPECT_TRUE(cell_of(table, 2, "host.memory.used [MiB]").ends_with(" MiB"));
  EXPECT_EQ(sums.devices, 0);
  EXPECT_FALSE(sums.nvml);
  EXPECT_GT(sums.host_memory_bytes, 0u);
}

// Without the driver's library the monitor writes what CUDA and the system report.
TEST_F(Monitor, WritesOtherFiguresWithoutNvml) {
  MonitorOptions absent = with_devices();
  absent.nvml_library = "libthere-is-none.so.1";
  testing::internal::CaptureStderr();
  const MonitorSums sums = run(absent);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("libthere-is-none.so.1"), std::string::npos) << log;
  EXPECT_EQ(std::ranges::count(log, '\n'), 1) << log;
  const Table table = table_in(file());
  ASSERT_EQ(table.size(), 5u);
  EXPECT_EQ(cell_of(table, 2, "name"), "two");
  EXPECT_EQ(cell_of(table, 2, "pci.bus_id"), "0000:86:00.0");
  EXPECT_EQ(cell_of(table, 2, "utilization.gpu [%]"), "[N/A]");
  EXPECT_EQ(sums.devices, 2);
  EXPECT_FALSE(sums.nvml || sums.device_joules);
}

TEST_F(Monitor, SumsCoverTheSamplesSinceTheLastCall) {
  MonitorOptions often = with_devices();
  often.every_seconds = 0.001;
  DeviceMonitor monitor(often);
  wait_for_rows(10);
  const MonitorSums first = monitor.take();
  EXPECT_TRUE(first.nvml);
  EXPECT_GE(first.samples, 3);
  EXPECT_EQ(first.utilization.mean(), 97);
  EXPECT_EQ(first.utilization.count, 2 * first.samples) << "each sample has two devices";
  EXPECT_EQ(first.memory_used_bytes, 10737418240u);
  EXPECT_EQ(first.clock_reasons, 4u);
  stub_.say({{"power", "0"}, {"utilization.gpu", "10"}, {"1.energy", "123556789"}, {"reasons", "0x40"}});
  wait_for_rows(6);
  const MonitorSums between = monitor.take();
  EXPECT_GE(first.device_joules.value() + between.device_joules.value(), 100)
      << "at least the counter's increase";
  wait_for_rows(6);
  const MonitorSums last = monitor.take();
  EXPECT_EQ(last.utilization.mean(), 10);
  EXPECT_EQ(last.clock_reasons, 0x40u);
  EXPECT_EQ(last.device_joules, 0);
}

TEST_F(Monitor, CountsDeviceEnergyOnceForSeveralSlices) {
  MonitorOptions slices = options();
  stub_.say({{"1.uuid", "MIG-four"}, {"energy!", "3"}, {"power", "100000"}});
  slices.devices = {{.uuid = "MIG-three", .pci_address = "0000:3b:00.0", .name = "three", .ranks = "0"},
                    {.uuid = "MIG-four", .pci_address = "0000:3b:00.0", .name = "four", .ranks = "1"}};
  const auto begin = std::chrono::steady_clock::now();
  DeviceMonitor monitor(slices);
  double joules = 0;
  wait_until([&] { return (joules += monitor.take().device_joules.value_or(0)) > 1; });
  const std::chrono::duration<double> most = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(joules, 1);
  EXPECT_LE(joules, 100 * most.count());
}

TEST_F(Monitor, CountsTheMachinesEnergyOnlyIfTold) {
  const auto joules = [&](bool counts_energy) {
    const fs::path package = folder_.path() / "sys/class/powercap/intel-rapl:0";
    fs::create_directories(package);
    std::ofstream(package / "energy_uj") << "1000000";
    MonitorOptions often = options();
    often.every_seconds = 0.001;
    often.root = folder_.path();
    often.counts_energy = counts_energy;
    DeviceMonitor monitor(often);
    wait_for_rows(2);
    std::ofstream(package / "energy_uj") << "5000000";
    wait_for_rows(6);
    return monitor.take().host_joules.value_or(-1);
  };
  EXPECT_NEAR(joules(true), 4, 1e-9);
  EXPECT_EQ(joules(false), 0);
}

TEST_F(Monitor, ResumedRunAddsRowsAndANewRunKeepsTheOldFile) {
  run(options());
  MonitorOptions more = options();
  more.goes_on = true;
  std::ofstream(file(), std::ios::app) << "2026/11/25 09:31:02.123, half a li";
  run(more);
  const Table table = table_in(file());
  ASSERT_EQ(table.size(), 5u);
  for (const auto& row : table) EXPECT_EQ(row.size(), table[0].size());
  EXPECT_EQ(std::ranges::count(table, table[0]), 1);
  run(options());
  EXPECT_EQ(table_in(file()).size(), 3u);
  EXPECT_EQ(table_in(folder_.path() / "run" / "monitor.1.csv"), table);
}

TEST_F(Monitor, ResumedRunReadsOnlyTheEndOfALargeFile) {
  fs::create_directories(file().parent_path());
  std::ofstream(file()) << monitor_header();
  const std::uintmax_t size = std::uintmax_t{64} << 30;  // sparse, and too large for memory
  fs::resize_file(file(), size);
  std::ofstream(file(), std::ios::app) << "\npartial";
  const MonitorFile rows(file(), true);
  EXPECT_EQ(fs::file_size(file()), size + 1);
}

TEST_F(Monitor, FileWithOtherColumnsIsKept) {
  fs::create_directories(file().parent_path());
  std::ofstream(file()) << "timestamp, name\n2026, old\n";
  MonitorOptions more = options();
  more.goes_on = true;
  run(more);
  EXPECT_EQ(table_in(file()).size(), 3u);
  EXPECT_EQ(file_text(folder_.path() / "run" / "monitor.1.csv"), "timestamp, name\n2026, old\n");
}

// The monitor does not write to the mount point of an unmounted disk.
TEST_F(Monitor, RemovedFolderIsNotCreatedAgain) {
  MonitorFile rows(file(), false);
  const std::vector<MonitorRow> one = {{.device = {.name = "a name"}}};
  rows.append(one);
  fs::rename(file().parent_path(), folder_.path() / "away");
  testing::internal::CaptureStderr();
  rows.append(one);
  const std::string log = testing::internal::GetCapturedStderr();
  expect_parts(log, {file().string(), "No such file or directory"});
  EXPECT_FALSE(fs::exists(file().parent_path()));
  fs::rename(folder_.path() / "away", file().parent_path());
  rows.append(one);
  EXPECT_EQ(table_in(file()).size(), 3u);
}

TEST_F(Monitor, LinkThatCannotBeRenamedIsNotFollowed) {
  fs::create_directories(file().parent_path());
  const fs::path target = folder_.path() / "target";
  std::ofstream(target) << "precious";
  const fs::path link = file().parent_path() / (std::string(251, 'm') + ".csv");  // no room for ".1"
  fs::create_symlink(target, link);
  const std::vector<MonitorRow> one = {{.device = {.name = "a name"}}};
  testing::internal::CaptureStderr();
  MonitorFile rows(link, false);
  rows.append(one);
  expect_parts(testing::internal::GetCapturedStderr(), {link.string(), "symbolic link", "not written"});
  EXPECT_EQ(file_text(target), "precious");
}

// After a full disk has space again, the header exists and all rows are complete.
TEST_F(Monitor, FullDiskOmitsWholeRows) {
  fs::create_directories(file().parent_path());
  MonitorFile rows(file(), false);
  const std::vector<MonitorRow> one = {{.device = {.name = "a, \"quoted\"\nname"}}};
  fs::create_symlink("/dev/full", file());
  testing::internal::CaptureStderr();
  rows.append(one);
  testing::internal::GetCapturedStderr();
  fs::remove(file());
  rows.append(one);
  rows.append(one);
  const Table table = table_in(file());
  ASSERT_EQ(table.size(), 3u);
  EXPECT_EQ(file_text(file()).substr(0, monitor_header().size()), monitor_header());
  EXPECT_EQ(table[1].size(), table[0].size());
  EXPECT_EQ(table[1][1], "a   quoted  name") << "no character breaks the row";
}

// The figures of the driver and those that a rank publishes, under one name of the device.
TEST_F(Monitor, PublishesMetricsOfDevicesAndRanks) {
  const RankIdentity rank = {.rank = 1,
                             .ranks = 3,
                             .job = "a job",
                             .host = "node7",
                             .run_dir = "/runs/x",
                             .device = "cuda:1",
                             .device_uuid = "GPU-two"};
  const ShownRank shown(rank, folder_.path());
  RankIdentity other_job = rank;
  other_job.job = "another job";
  const ShownRank other(other_job, folder_.path());
  const fs::path folder = folder_.path() / "metrics";
  {
    MonitorOptions all = with_devices();
    all.metrics =
        std::make_shared<MetricsOutput>(PrometheusOptions{.dir = folder.string()}, rank, "node7", true);
    all.metrics->count_warning("idle", "data");
    all.metrics->count_warning("idle", "an unknown cause");
    all.rank_folder = folder_.path();
    DeviceMonitor monitor(all);
    wait_until([&] { return monitor.take().samples > 0; });
    const std::string text = file_text(folder / metrics_file_name("/runs/x", "node7"));
    expect_parts(
        text, {R"(lockstep_gpu_power_watts{run="/runs/x",host="node7",device="cuda:1",uuid="GPU-two",)",
               R"(lockstep_gpu_utilization_ratio{run="/runs/x",host="node7",device="00000000:3B:00.0",)",
               R"(rank="1",device="cuda:1",state="starting"} 1)", R"(cause="data"} 1)", R"(cause="other"} 1)",
               R"(cause="memory"} 0)"});
    EXPECT_EQ(text.find("another job"), std::string::npos);
  }
  wait_for_end();
  EXPECT_TRUE(fs::is_empty(folder)) << "the file is removed at the end";
}

TEST(MonitorOptions, ListDevicesAndProcessesOfTheNode) {
  const MonitoredDevice one{.uuid = "GPU-one", .pci_address = "0000:3b:00.0", .name = "one"};
  const MonitoredDevice two{.uuid = "GPU-two", .pci_address = "0000:86:00.0", .name = "two"};
  std::vector<MonitoredRank> ranks = {
      {.node = 0, .host = "near", .process = 10, .process_space = "pid:[1]", .device = one},
      {.node = 1, .host = "far", .process = 10, .process_space = "pid:[1]", .device = one},
      {.node = 1, .host = "far", .process = 11, .process_space = "pid:[1]", .device = two},
      {.node = 1, .host = "far", .process = 12, .process_space = "pid:[2]", .device = two}};
  EXPECT_EQ(monitor_options(ranks, 0).file, "monitor.csv");
  const MonitorOptions far = monitor_options(ranks, 1);
  EXPECT_EQ(far.file, "monitor.far.csv");
  EXPECT_EQ(far.ranks, "1 2 3");
  EXPECT_EQ(far.processes, (std::vector<pid_t>{10, 11})) << "only processes of the same PID namespace";
  ASSERT_EQ(far.devices.size(), 2u);
  EXPECT_EQ(far.devices[0].ranks, "1");
  EXPECT_EQ(far.devices[1].ranks, "2 3");
  EXPECT_EQ(far.devices[1].name, "two");
  ranks[0].host = "far";
  ranks[0].device = {};
  EXPECT_EQ(monitor_options(ranks, 1).file, "monitor.far-1.csv");
  EXPECT_TRUE(monitor_options(ranks, 0).devices.empty());
}

TEST(MonitorOptions, OneNodeCountsTheEnergyOfAMachine) {
  std::vector<MonitoredRank> ranks(3);
  for (int node = 0; node < 3; ++node) ranks[static_cast<std::size_t>(node)].node = node;
  const auto counts = [&] {
    std::vector<bool> all;
    for (int node = 0; node < 3; ++node) all.push_back(monitor_options(ranks, node).counts_energy);
    return all;
  };
  EXPECT_EQ(counts(), (std::vector<bool>{true, true, true})) << "machines are unknown";
  ranks[0].machine = ranks[2].machine = "a";
  ranks[1].machine = "b";
  EXPECT_EQ(counts(), (std::vector<bool>{true, true, false}));
}

}  // namespace
}  // namespace lockstep
