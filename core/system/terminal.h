// SPDX-License-Identifier: Apache-2.0
//
// The terminal that shows the output. mpirun gives every rank a pseudo-terminal, even when its own output
// goes to a pipe, so under mpirun the output of mpirun itself decides.
#pragma once

#include <string>

namespace lockstep {

struct Terminal {
  bool present = false;
  int columns = 80;
};

// Clears the current line of the terminal.
inline constexpr const char* kClearLine = "\r\x1b[K";

// descriptor: standard output, or STDERR_FILENO.
Terminal find_terminal(int descriptor = 1);

// Wraps the text to fit the terminal, with continuation lines indented; unchanged without a terminal.
std::string fitted(const std::string& text, const Terminal& terminal);

// Ignores SIGPIPE and SIGXFSZ from now on: a write to a closed pipe (`| head`), or beyond the file size
// limit, fails with an error instead of ending the process.
void make_failed_writes_errors();

// Flushes standard output. Throws IoError if that or an earlier write to it failed.
void flush_or_throw();

// Prints fitted() text and a line break to standard output.
void print_fitted(const std::string& text);
// The start of a line, then the text; on a terminal wrapped in a column beside the start.
std::string beside(const std::string& start, const std::string& text, const Terminal& terminal);
// Prints the start of a line, then the text, wrapped in a column beside it.
void print_beside(const std::string& start, const std::string& text);

}  // namespace lockstep
