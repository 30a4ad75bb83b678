// SPDX-License-Identifier: Apache-2.0
//
// Text that fits a terminal.
#pragma once

#include <string>

namespace lockstep {

struct Wrapping {
  std::size_t indent = 0;   // blanks before every line
  std::size_t hanging = 0;  // and more of them before what a line is broken into, but its beginning
  std::size_t columns = 80;
};

// Breaks lines at blanks; a word longer than a line gets one of its own. A line that fits stays as it is, and
// so do the line breaks in the text and, for all that a line is broken into, the blanks that it begins with.
// No blanks end a line, and no line break the text.
std::string wrapped(const std::string& text, const Wrapping& wrapping);

}  // namespace lockstep
