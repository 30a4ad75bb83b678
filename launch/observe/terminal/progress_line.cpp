// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/terminal/progress_line.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>

#include <fmt/format.h>

#include "core/text/text.h"

namespace lockstep {
namespace {

constexpr int kShortestBar = 8;
constexpr int kLongestBar = 40;

std::string bar(double fraction, int columns) {
  const int full = std::clamp(static_cast<int>(fraction * columns), 0, columns);
  return fmt::format("[{:#<{}}{:.<{}}]", "", full, "", columns - full);
}

}  // namespace

std::string bar_line(const ProgressLine& progress, int terminal_columns) {
  const int columns = terminal_columns - 1;  // a full last column wraps on some terminals
  std::string tail;
  for (const std::string& part : progress.parts) {
    if (progress.start.size() + tail.size() + 2 + part.size() > static_cast<std::size_t>(columns)) break;
    tail += "  " + part;
  }
  const int room = columns - static_cast<int>(progress.start.size() + tail.size()) - 4;  // "  [" and "]"
  if (room >= kShortestBar)
    return progress.start + "  " + bar(progress.fraction, std::min(room, kLongestBar)) + tail;
  return (progress.start + tail).substr(0, static_cast<std::size_t>(std::max(columns, 0)));
}

std::string plain_line(const ProgressLine& progress) {
  std::string line = progress.start;
  for (const std::string& part : progress.parts) line += "  " + part;
  return line;
}

std::string thousands(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  std::string text = fmt::format("{:.0f}", value);
  const std::size_t sign = text.starts_with('-');
  for (std::size_t at = text.size(); at > sign + 3;) text.insert(at -= 3, 1, ',');
  return text;
}

std::string rounded_rate(double rate) { return rate < 10 ? short_number(rate) : thousands(rate); }

std::string per_second(double rate, const std::string& unit) {
  return fmt::format("{} {}/s", rounded_rate(rate), unit);
}

std::string duration(double seconds) {
  const auto total = static_cast<std::int64_t>(std::llround(std::max(0.0, seconds)));
  const std::int64_t hours = total / 3600, minutes = total / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60)
                   : fmt::format("{}:{:02}", minutes, total % 60);
}

void say(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace lockstep
