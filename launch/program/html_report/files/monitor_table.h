// SPDX-License-Identifier: Apache-2.0
//
// monitor.csv: the use of devices and hosts during a run, in the columns of `nvidia-smi --query-gpu=..
// --format=csv`, followed by further columns. Columns are identified by their headers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launch/observe/charts/chart_axis.h"

namespace lockstep {

// One column of one device, or of one host.
struct MonitorSeries {
  std::string column;              // "utilization.gpu"
  std::string unit;                // "%"; as the header has it
  std::string device;              // label of the device; empty for the host, and if there is only one
  std::vector<ChartPoint> points;  // x: minutes since the file's first line
};

// The columns with a unit, by column, then by device. Throws DataError, with the line number, for a line that
// does not fit the header. A cell without a number ("[N/A]") gives no point. An incomplete last line is
// skipped.
std::vector<MonitorSeries> read_monitor_table(std::string_view text, const std::string& name);

// Calls what(line, number, is_whole) for each line, numbered from 1. A last line without a line end is not
// whole.
template <typename What>
void for_each_line(std::string_view text, const What& what) {
  for (std::size_t begin = 0, number = 1; begin < text.size(); ++number) {
    const std::size_t end = text.find('\n', begin);
    const bool whole = end != std::string_view::npos;
    std::string_view line = text.substr(begin, whole ? end - begin : end);
    begin = whole ? end + 1 : text.size();
    if (line.ends_with('\r')) line.remove_suffix(1);
    what(line, number, whole);
  }
}

}  // namespace lockstep
