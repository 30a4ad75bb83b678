// SPDX-License-Identifier: Apache-2.0
//
// Wraps text to a terminal's width.
#pragma once

#include <string>

namespace lockstep {

struct Wrapping {
  std::size_t indent = 0;   // blanks before every line
  std::size_t hanging = 0;  // further blanks before continuation lines
  std::size_t columns = 80;
};

// Breaks lines at blanks; a word longer than a line stays whole on one line. Keeps line breaks and, for all
// lines that a line is broken into, its leading blanks. The result has no trailing blanks and no final line
// break.
std::string wrapped(const std::string& text, const Wrapping& wrapping);

}  // namespace lockstep
