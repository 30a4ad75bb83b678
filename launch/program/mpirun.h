// SPDX-License-Identifier: Apache-2.0
//
// Starts the ranks of one machine: `lockstep train --ranks 2 ...` runs the mpirun command that a user would
// otherwise write.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// "mpirun" and its options before the program: no binding, because ranks choose their cores themselves; more
// ranks than cores are allowed; and root is allowed where this process is root, as in containers.
std::vector<std::string> mpirun_words(int ranks);

// Replaces this process by mpirun, which runs this command without --ranks on that number of ranks. Prints
// the mpirun command to standard error first; standard input becomes /dev/null. Returns if `ranks` is 1: this
// process is that rank. Throws UsageError if a launcher started this process, and ConfigError if mpirun
// cannot be started.
void start_ranks(int ranks);

// The shell command that started this job: with --ranks if start_ranks() started its ranks. Under another
// launcher it is the command of a rank.
std::string job_command();

// The shell command that starts `words`, a lockstep command without --ranks, on that number of ranks, in the
// form in which this job was started: "mpirun -np 2 lockstep train FILE" or "lockstep train --ranks 2 FILE".
std::string command_of_ranks(int ranks, const std::vector<std::string>& words);

}  // namespace lockstep
