// SPDX-License-Identifier: Apache-2.0
//
// Log lines on standard error, each with its rank. Only rank 0 prints info lines and shared warnings, so
// library code never checks the rank. Every rank prints its own warnings and errors. Metrics are data and go
// to files, not here. Lines are made printable, because they may quote untrusted text.
#pragma once

#include <cstddef>
#include <string_view>

#include <fmt/format.h>

#include "core/error.h"

namespace lockstep::log {

enum class Level { debug, info, warning, error, off };

// The levels' names for users. `off` has none: only the program sets it.
inline constexpr std::string_view kLevelWords[] = {"debug", "info", "warning", "error"};
static_assert(std::size(kLevelWords) == static_cast<std::size_t>(Level::off));

// Drops lines below this level. Default: info.
void set_level(Level level);
// Sets the level by its name in kLevelWords; any other name is a failed CHECK.
void set_level(std::string_view word);

// For terminals: breaks longer lines at this width, indents the continuation, and clears a progress bar
// before each line. 0, the default, disables all three.
void set_columns(std::size_t columns);

void write(Level level, std::string_view message);

// While one exists, its thread or process writes only errors: for work that would repeat lines already
// written.
class Quiet {
 public:
  enum class Scope { thread, process };  // process: all threads, including those of a loader
  explicit Quiet(Scope scope = Scope::thread);
  ~Quiet();
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  Scope scope_;
};

// The error of a process that is ending (core/system/last_words.h): dropped if standard error does not accept
// it.
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
// A warning that all ranks raise alike: printed by rank 0 only.
template <typename... Args>
void shared_warning(fmt::format_string<Args...> format, Args&&... args) {
  if (current_rank() == 0) write(Level::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::error, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace lockstep::log
