// SPDX-License-Identifier: Apache-2.0
#include "comm/job/dead_segments.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <fstream>
#include <map>
#include <system_error>

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/text/text.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kYoungest{60};

// Names of Open MPI 4 and 5.
bool is_segment_name(const std::string& name) {
  return name.starts_with("vader_segment.") || name.starts_with("sm_segment.");
}

// Sizes of this user's segments that are not new, by name.
std::map<std::string, std::uint64_t> segments_in(const fs::path& folder) {
  std::map<std::string, std::uint64_t> found;
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now() - kYoungest);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename();
    struct stat status = {};
    if (!is_segment_name(name) || lstat(entry.path().c_str(), &status) != 0) continue;
    if (!S_ISREG(status.st_mode) || status.st_uid != geteuid() || status.st_mtime > now) continue;
    found[name] = static_cast<std::uint64_t>(status.st_size);
  }
  return found;
}

bool is_process(const fs::path& path) {
  return std::ranges::all_of(path.filename().string(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

}  // namespace

DeadSegments dead_segments(const fs::path& folder, const fs::path& processes) {
  std::map<std::string, std::uint64_t> unused = segments_in(folder);
  std::error_code ignored;
  if (unused.empty()) return {};
  for (const auto& entry : fs::directory_iterator(processes, ignored)) {
    if (!is_process(entry.path())) continue;
    std::ifstream maps(entry.path() / "maps");
    for (std::string line; std::getline(maps, line);)
      if (const std::size_t slash = line.rfind('/'); slash != std::string::npos)
        unused.erase(line.substr(slash + 1));
  }
  DeadSegments dead;
  struct statvfs status = {};
  if (statvfs(folder.c_str(), &status) == 0)
    dead.capacity = static_cast<std::uint64_t>(status.f_blocks) * status.f_frsize;
  for (const auto& [name, bytes] : unused) {
    if (dead.files++ == 0) dead.first = name;
    dead.bytes += bytes;
  }
  return dead;
}

std::string describe(const DeadSegments& dead, const std::string& host) {
  if (dead.files == 0 || dead.bytes < dead.capacity / 10) return {};
  return fmt::format(
      "/dev/shm of {} has {} MiB in {} of killed Open MPI jobs ({}), a tenth of its size or more. No process "
      "visible here uses them. To remove them: find /dev/shm -name '*_segment.*' -user {} -mmin +1 ! -exec "
      "grep -qsF {{}} /proc/[0-9]*/maps \\; -delete",
      host, dead.bytes >> 20, counted(dead.files, "file"), dead.first, geteuid());
}

}  // namespace lockstep
