// SPDX-License-Identifier: Apache-2.0
//
// monitor.csv: what devices and hosts were doing while a run went on, in the columns of `nvidia-smi
// --query-gpu=.. --format=csv` and whatever follows them. Columns are known by their headers alone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launch/charts/chart_axis.h"

namespace lockstep {

// One column of one device, or of one host.
struct MonitorSeries {
  std::string column;              // "utilization.gpu"
  std::string unit;                // "%"; as the header has it
  std::string device;              // what tells it from the others; empty: there is one
  std::vector<ChartPoint> points;  // x: minutes since the file's first line
};

struct MonitorTable {
  std::vector<MonitorSeries> series;  // columns in their order, and of each the devices; those with a unit
};

// Throws DataError with the line for one that does not fit the header. A value that is no number ("[N/A]")
// has no point. A last line without its end is left out.
MonitorTable read_monitor_table(std::string_view text, const std::string& name);

// Calls what(line, number, is_whole) for each line, from 1; a last one without its end is not whole.
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
