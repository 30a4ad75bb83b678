// SPDX-License-Identifier: Apache-2.0
//
// Whether somebody watches. mpirun gives every rank a terminal of its own making, even when its output goes
// to a pipe; what counts is where mpirun itself prints.
#pragma once

namespace lockstep {

struct Terminal {
  bool present = false;
  int columns = 80;
};

// Of standard output.
Terminal find_terminal();

}  // namespace lockstep
