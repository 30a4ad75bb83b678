// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/monitor/process.h"

#include <fstream>
#include <sstream>
#include <string>

#include <sys/stat.h>
#include <unistd.h>

namespace lockstep {

std::int64_t own_resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t pages = 0, resident_pages = 0;
  if (!(file >> pages >> resident_pages)) return 0;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

std::uint64_t own_process_space() {
  struct stat status = {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

// proc(5): field 3 follows the name, which ends with the last parenthesis.
std::optional<ProcessFigures> process_figures(std::int64_t process, const std::filesystem::path& folder) {
  std::ifstream file(folder / std::to_string(process) / "stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  ProcessFigures figures;
  fields >> figures.state;
  std::string skipped;
  for (int field = 4; field < 14; ++field) fields >> skipped;
  std::uint64_t user = 0, system = 0;
  fields >> user >> system;
  for (int field = 16; field < 22; ++field) fields >> skipped;
  fields >> figures.start;
  if (!fields) return std::nullopt;
  figures.processor_ticks = user + system;
  return figures;
}

double ProcessFigures::processor_seconds() const {
  return static_cast<double>(processor_ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace lockstep
