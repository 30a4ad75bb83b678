// SPDX-License-Identifier: Apache-2.0
//
// Which process a number means, and what Linux tells of it in /proc.
#pragma once

#include <cstdint>
#include <optional>

namespace lockstep {

// The space (namespace) in which this process's numbers of processes mean something; 0: not told.
std::uint64_t own_process_space();

struct ProcessFigures {
  char state = 0;           // 'R', 'S', 'T' (stopped), 'Z' (dead), ..
  std::uint64_t start = 0;  // in ticks since the machine started: no later process of this number has it
  double processor_seconds = 0;
  std::int64_t threads = 0;
  bool dead() const { return state == 'Z' || state == 'X'; }
};

// Nothing where there is no such process.
std::optional<ProcessFigures> process_figures(std::int64_t process);

}  // namespace lockstep
