// SPDX-License-Identifier: Apache-2.0
//
// DeviceMonitor: what devices and their machine do while a job trains. A thread of its own asks them every
// now and then, with what is left of the cores when nobody else wants them, and writes a row for each device
// of the job on this node; where there is none, of the machine. It touches nothing that the training has, and
// nothing that fails here ends it.
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
#include "launch/config/config.h"
#include "launch/monitor/monitor_sums.h"
#include "launch/monitor/slowed_device.h"

namespace lockstep {

struct MonitoredDevice {
  std::string uuid, pci_address, name;  // as CUDA tells them
  std::string ranks = {};               // "0 1"
};

struct MonitorOptions {
  std::filesystem::path file;
  bool goes_on = false;  // see MonitorFile
  double every_seconds = 1;
  std::vector<MonitoredDevice> devices = {};
  std::string ranks = {};             // of the node, for a row without a device
  std::vector<pid_t> processes = {};  // of the job
  std::string nvml_library = Nvml::kLibrary;
  std::filesystem::path root = "/";  // of HostLoad
};

class DeviceMonitor {
 public:
  // Returns at once; the first rows are taken right away, by the thread.
  explicit DeviceMonitor(const MonitorOptions& options);
  // Takes the last rows. Waits no longer than two seconds for a driver that does not answer.
  ~DeviceMonitor();
  DeviceMonitor(const DeviceMonitor&) = delete;
  DeviceMonitor& operator=(const DeviceMonitor&) = delete;

  // What was seen since the last take(), or the making; energy also since the last sample. Any thread; waits
  // for no device.
  MonitorSums take();
  // The slowest of the devices whose clocks were held down when it looked last. Any thread; likewise.
  std::optional<SlowedDevice> slowed() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread's, too
};

// What ranks tell each other of where they run.
struct MonitoredRank {
  int node = 0;
  std::string host;
  int process = 0;
  std::string process_space;  // in which that number means something
  MonitoredDevice device;     // without a UUID: none
};

// For a node's monitor: its devices, ranks and processes, and its file's name: monitor.csv for rank 0's node,
// monitor.HOST.csv for others, monitor.HOST-NODE.csv where nodes have one name. Devices of several ranks, or
// several times of one, are there once.
MonitorOptions monitor_options(std::span<const MonitoredRank> ranks, int node);

// Collective. One that writes its file in run.dir every run.monitor_seconds, on the first rank of each node;
// null on others, and where there is to be none.
std::unique_ptr<DeviceMonitor> begin_monitor(const Config& config, const World& world, Communicator& host,
                                             Device device, bool goes_on);

// Collective. What the monitors of all nodes saw; on every rank. mine: null on a rank without one.
MonitorSums take_of_all_nodes(DeviceMonitor* mine, Communicator& host);

}  // namespace lockstep
