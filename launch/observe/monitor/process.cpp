// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/monitor/process.h"

#include <fstream>
#include <sstream>
#include <string>

#include <fmt/format.h>
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
std::optional<ProcessFigures> process_figures(std::int64_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  ProcessFigures figures;
  fields >> figures.state;
  std::string skipped;
  for (int field = 4; field < 14; ++field) fields >> skipped;
  std::uint64_t user = 0, system = 0;
  fields >> user >> system;
  for (int field = 16; field < 20; ++field) fields >> skipped;
  fields >> figures.threads >> skipped >> figures.start;
  if (!fields) return std::nullopt;
  figures.processor_seconds = static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return figures;
}

}  // namespace lockstep
