// SPDX-License-Identifier: Apache-2.0
//
// Ranks of this machine, which the program starts itself: `lockstep train --ranks 2 ...` becomes the mpirun
// that a user would have to type, with what this machine needs.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// "mpirun", and what it is to be told before the program: bind to no core, for ranks share them out
// themselves; start more ranks than there are cores, where that is asked for; and start as root, where this
// user is root, as in containers.
std::vector<std::string> mpirun_words(int ranks);

// This process becomes mpirun, which starts so many ranks of the command that this process is, without its
// --ranks. Prints the command that it is first, to standard error. Throws UsageError where something has
// started several ranks already, and ConfigError where there is no mpirun.
[[noreturn]] void start_ranks(int ranks);

// How a user starts so many ranks of this command as this job was started: "mpirun -np 2 lockstep train
// FILE", "lockstep train --ranks 2 FILE". words: the command without how ranks are started.
std::string command_of_ranks(int ranks, const std::vector<std::string>& words);

}  // namespace lockstep
