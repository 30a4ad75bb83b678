// SPDX-License-Identifier: Apache-2.0
//
// How far something is, in one line: a bar on a terminal, words elsewhere.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

struct ProgressLine {
  std::string start;               // "epoch 2/5"
  double fraction = 0;             // that is done
  std::vector<std::string> parts;  // what matters most first
};

// As much of it as fits in one line of a terminal, the bar in what is left.
std::string bar_line(const ProgressLine& progress, int terminal_columns);
// All of it, without a bar.
std::string plain_line(const ProgressLine& progress);

// Rounded to a whole number: "1,234,567".
std::string thousands(double value);

// "0:07", "1:02:03".
std::string duration(double seconds);

// Empties the terminal's line, to be drawn again.
inline constexpr const char* kClearLine = "\r\x1b[K";

// Writes to standard output at once. A closed pipe or a full disk behind it must not end a training run.
void say(const std::string& text);

}  // namespace lockstep
