// SPDX-License-Identifier: Apache-2.0
//
// DeviceMonitor: samples devices and their machine while a job trains. A separate thread (SCHED_BATCH)
// samples at an interval and writes a row for each device of the job on this node, or one for the machine if
// there is no device. It shares no state with the training, and its failures never end the training.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <sys/types.h>

#include "comm/communicator.h"
#include "comm/world.h"
#include "core/device.h"
#include "launch/observe/jobs/shown_rank.h"
#include "launch/observe/monitor/monitor_sums.h"
#include "launch/observe/monitor/slowed_device.h"
#include "launch/observe/prometheus/metrics_output.h"

namespace lockstep {

struct MonitoredDevice {
  std::string uuid, pci_address, name;  // as reported by CUDA
  std::string ranks = {};               // "0 1"
};

struct MonitorOptions {
  std::filesystem::path file;
  bool goes_on = false;  // see MonitorFile
  double every_seconds = 1;
  std::vector<MonitoredDevice> devices = {};
  std::string ranks = {};             // ranks of the node, for rows without a device
  std::vector<pid_t> processes = {};  // processes of the job on this node
  bool counts_energy = true;          // of the machine; false: another node's monitor counts it
  std::string nvml_library = Nvml::kLibrary;
  std::filesystem::path root = "/";             // root of HostLoad
  std::shared_ptr<MetricsOutput> metrics = {};  // publishes each sample, with the ranks' state; null: none
  std::filesystem::path rank_folder = kRankFolder;
};

class DeviceMonitor {
 public:
  // Returns immediately; the thread takes the first sample at once.
  explicit DeviceMonitor(const MonitorOptions& options);
  // Takes a last sample. Waits at most 2 s for a driver that does not respond.
  ~DeviceMonitor();
  DeviceMonitor(const DeviceMonitor&) = delete;
  DeviceMonitor& operator=(const DeviceMonitor&) = delete;

  // Sums since the last take(), or construction; energy is extrapolated from the last sample. Any thread;
  // never waits for a device.
  MonitorSums take();
  // The device with the lowest relative clock among those held down at the last sample. Any thread; never
  // waits for a device.
  std::optional<SlowedDevice> slowed() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread
};

// The node, process and device of a rank; exchanged between ranks.
struct MonitoredRank {
  int node = 0;
  std::string host;
  int process = 0;
  std::string process_space;  // PID namespace of that number
  std::string machine = {};   // equal in all containers of a machine; empty: unknown
  MonitoredDevice device;     // an empty UUID means no device
};

// Sets the devices, ranks, processes, counts_energy and file of a node's monitor. The file is monitor.csv on
// rank 0's node, monitor.HOST.csv on other nodes, and monitor.HOST-NODE.csv if nodes share a host name. A
// device used by several ranks is listed once.
MonitorOptions monitor_options(std::span<const MonitoredRank> ranks, int node);

struct MonitorSettings {
  std::filesystem::path folder;  // folder of monitor.csv
  double every_seconds = 1;      // 0 disables the monitor
  bool goes_on = false;          // see MonitorFile
  std::shared_ptr<MetricsOutput> metrics = {};
};

// Collective. Starts a monitor on the first rank of each node. Null on other ranks, and if
// every_seconds is 0.
std::unique_ptr<DeviceMonitor> begin_monitor(const MonitorSettings& settings, const World& world,
                                             Communicator& host, Device device);

// Collective. Sums of the monitors of all nodes, on every rank. mine: null on a rank without one.
MonitorSums take_of_all_nodes(DeviceMonitor* mine, Communicator& host);

}  // namespace lockstep
