// SPDX-License-Identifier: Apache-2.0
//
// Identifies processes by number, and reads their figures from /proc.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace lockstep {

// Resident memory of this process; 0 if the system does not report it.
std::int64_t own_resident_bytes();

// The PID namespace of this process, in which its process numbers are valid; 0: unknown.
std::uint64_t own_process_space();

struct ProcessFigures {
  char state = 0;           // 'R', 'S', 'T' (stopped), 'Z' (dead), ..
  std::uint64_t start = 0;  // in ticks since boot; distinguishes later processes with the same number
  std::uint64_t processor_ticks = 0;
  double processor_seconds() const;
  bool dead() const { return state == 'Z' || state == 'X'; }
};

// Empty if there is no such process. folder: tests replace it.
std::optional<ProcessFigures> process_figures(std::int64_t process,
                                              const std::filesystem::path& folder = "/proc");

}  // namespace lockstep
