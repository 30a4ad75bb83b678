// SPDX-License-Identifier: Apache-2.0
//
// MonitorFile: a table of samples as CSV, whose first columns are those of nvidia-smi, byte for byte, so that
// what reads these files reads ours:
//
//   nvidia-smi --query-gpu=timestamp,name,pci.bus_id,driver_version,pstate,pcie.link.gen.max,
//     pcie.link.gen.current,temperature.gpu,utilization.gpu,utilization.memory,memory.total,memory.free,
//     memory.used --format=csv
//
// What follows them is ours; what is not known is "[N/A]".
#pragma once

#include <chrono>
#include <filesystem>
#include <span>
#include <string>

#include "launch/monitor/host_load.h"
#include "launch/monitor/nvml.h"

namespace lockstep {

struct MonitorRow {
  std::chrono::system_clock::time_point time;
  DeviceFigures device;  // where there is none, its name is the processor's
  HostFigures host;      // the same in all rows of a sample
  std::string ranks;     // whose device it is: "0 1"
};

// The header, with its end of line, and a row.
std::string monitor_header();
std::string text_of(const MonitorRow& row);

class MonitorFile {
 public:
  // Of a run that goes on: rows are added to those that are there. Otherwise what an earlier run left is
  // renamed (name_of_earlier), as is a file with other columns. Makes the folder, which a node may not share;
  // one that goes away later is not made again: it may be a disk that was unmounted.
  MonitorFile(std::filesystem::path path, bool goes_on);

  // All of them, or none: a disk that takes no more costs rows, and is warned of once.
  void append(std::span<const MonitorRow> rows);

 private:
  void set_earlier_aside();

  std::filesystem::path path_;
  bool warned_ = false;
};

}  // namespace lockstep
