// SPDX-License-Identifier: Apache-2.0
//
// MonitorFile: a table of samples as CSV. Its first columns are identical to those of nvidia-smi, so that
// readers of these files can read it:
//
//   nvidia-smi --query-gpu=timestamp,name,pci.bus_id,driver_version,pstate,pcie.link.gen.max,
//     pcie.link.gen.current,temperature.gpu,utilization.gpu,utilization.memory,memory.total,memory.free,
//     memory.used --format=csv
//
// Lockstep's own columns follow. Unknown values are "[N/A]".
#pragma once

#include <chrono>
#include <filesystem>
#include <span>
#include <string>

#include "launch/observe/monitor/host_load.h"
#include "launch/observe/monitor/nvml.h"

namespace lockstep {

struct MonitorRow {
  std::chrono::system_clock::time_point time;
  DeviceFigures device;  // without a device, its name is the processor's
  HostFigures host;      // the same in all rows of a sample
  std::string ranks;     // ranks that use the device: "0 1"
};

// The header, with its end of line, and a row.
std::string monitor_header();
std::string text_of(const MonitorRow& row);

class MonitorFile {
 public:
  // goes_on: a resumed run appends to existing rows. Otherwise an existing file is renamed (name_of_earlier),
  // as is a file with other columns. Creates the folder, which nodes may not share. A folder that disappears
  // later is not created again: it may be on an unmounted disk.
  MonitorFile(std::filesystem::path path, bool goes_on);

  // Appends all rows or none. A failed write loses the rows; the first failure is logged.
  void append(std::span<const MonitorRow> rows);

 private:
  void set_earlier_aside();

  std::filesystem::path path_;
  bool warned_ = false;
};

}  // namespace lockstep
