// SPDX-License-Identifier: Apache-2.0
//
// Whether somebody watches. mpirun gives every rank a terminal of its own making, even when its output goes
// to a pipe; what counts is where mpirun itself prints.
#pragma once

#include <string>

namespace lockstep {

struct Terminal {
  bool present = false;
  int columns = 80;
};

// Of standard output, or of STDERR_FILENO.
Terminal find_terminal(int descriptor = 1);

// The text as it is, or with lines that fit the terminal where there is one, what is broken off indented.
std::string fitted(const std::string& text, const Terminal& terminal);

// From now on output that nobody reads any more (`| head`), and a file at the limit of its size, are errors
// of the write that meets them, and end no process by a signal.
void make_failed_writes_errors();

// To standard output, fitted, with a line break at the end.
void print_fitted(const std::string& text);
// The same of a text in a column of its own, beside a start of the line.
void print_beside(const std::string& start, const std::string& text);

}  // namespace lockstep
