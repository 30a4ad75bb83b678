// SPDX-License-Identifier: Apache-2.0
//
// Log lines on standard error, each with its rank. Info, and a warning that every rank has alike, are printed
// by rank 0 only, so library code never asks which rank it is; other warnings and errors are printed by
// whichever rank has one. Metrics are data and go to files, not here. What lines quote may come from
// anywhere: they are made printable.
#pragma once

#include <cstddef>
#include <string_view>

#include <fmt/format.h>

#include "core/error.h"

namespace lockstep::log {

enum class Level { debug, info, warning, error, off };

// What people call the levels, but for off, which is the program's own.
inline constexpr std::string_view kLevelWords[] = {"debug", "info", "warning", "error"};

// Lines below this level are dropped. Default: info. Returns the level before.
Level set_level(Level level);
// By its word; any other is a failed CHECK.
void set_level(std::string_view word);

// From here on longer lines are broken, and what is broken off is indented: for the terminal that shows them.
// 0: they stay whole. Default: 0.
void set_columns(std::size_t columns);

void write(Level level, std::string_view message);

// An error of a process that ends now (core/last_words.h): dropped where standard error takes no more.
void last_error(std::string_view message);

template <typename... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::debug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::info, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::warning, fmt::format(format, std::forward<Args>(args)...));
}
// Of what every rank finds alike: told once, not once by each rank.
template <typename... Args>
void shared_warning(fmt::format_string<Args...> format, Args&&... args) {
  if (current_rank() == 0) write(Level::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::error, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace lockstep::log
