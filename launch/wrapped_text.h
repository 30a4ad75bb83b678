// SPDX-License-Identifier: Apache-2.0
//
// Text that fits a terminal.
#pragma once

#include <string>

namespace lockstep {

struct Wrapping {
  std::size_t indent = 0;  // blanks before every line
  std::size_t columns = 80;
};

// Breaks lines at blanks; a word longer than a line gets one of its own. Line breaks in the text stay, and so
// do the blanks that a line begins with, for all that it is broken into. No line break at the end.
std::string wrapped(const std::string& text, const Wrapping& wrapping);

}  // namespace lockstep
