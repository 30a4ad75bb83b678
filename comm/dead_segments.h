// SPDX-License-Identifier: Apache-2.0
//
// Shared memory that Open MPI made for jobs that were killed. It removes its files when a job ends, and none
// where SIGKILL ends the launcher, too; they take memory until somebody removes them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep {

struct DeadSegments {
  int files = 0;
  std::uint64_t bytes = 0;     // that they may come to have, as pages are touched
  std::string first;           // a name
  std::uint64_t capacity = 0;  // of the folder's file system
};

// Files of this user, at least a minute old, that no process maps. Processes of other containers, which may
// share the folder, cannot be seen: so nothing is removed. processes: where the system shows them.
DeadSegments dead_segments(const std::filesystem::path& folder = "/dev/shm",
                           const std::filesystem::path& processes = "/proc");

// For people, with a command that removes them; empty for less than a tenth of the capacity.
std::string describe(const DeadSegments& dead, const std::string& host);

}  // namespace lockstep
