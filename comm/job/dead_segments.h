// SPDX-License-Identifier: Apache-2.0
//
// Finds shared memory of killed Open MPI jobs. Open MPI removes its files when a job ends, but not if SIGKILL
// ends the launcher too. The files then occupy memory until a user removes them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep {

struct DeadSegments {
  int files = 0;
  std::uint64_t bytes = 0;     // sum of file sizes; only touched pages take memory
  std::string first;           // name of one file
  std::uint64_t capacity = 0;  // bytes of the folder's file system
};

// Files of this user, at least a minute old, that no visible process maps. Nothing is removed: processes of
// other containers may share the folder but are not visible. processes: the /proc folder.
DeadSegments dead_segments(const std::filesystem::path& folder = "/dev/shm",
                           const std::filesystem::path& processes = "/proc");

// A text for users with a command that removes the files; empty below a tenth of the capacity.
std::string describe(const DeadSegments& dead, const std::string& host);

}  // namespace lockstep
