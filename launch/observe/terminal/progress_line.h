// SPDX-License-Identifier: Apache-2.0
//
// Progress in one line: with a bar on a terminal, plain text elsewhere.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

struct ProgressLine {
  std::string start;               // "epoch 2/5"
  double fraction = 0;             // completed share, 0 to 1
  std::vector<std::string> parts;  // the most important first
};

// The start, the parts that fit one line of a terminal, and a bar in the remaining columns.
std::string bar_line(const ProgressLine& progress, int terminal_columns);
// The start and all parts, without a bar.
std::string plain_line(const ProgressLine& progress);

// Rounded to a whole number: "1,234,567".
std::string thousands(double value);

// "1,500"; with two significant digits below 10: "0.25".
std::string rounded_rate(double rate);

// "1,500 images/s", "0.25 images/s".
std::string per_second(double rate, const std::string& unit);

// "0:07", "1:02:03".
std::string duration(double seconds);

// Writes to standard output and flushes it. Ignores errors: a closed pipe must not end a training.
void say(const std::string& text);

}  // namespace lockstep
