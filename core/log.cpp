// SPDX-License-Identifier: Apache-2.0
#include "core/log.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <memory>
#include <string>

#include <fmt/ranges.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "core/error.h"
#include "core/system/last_words.h"
#include "core/system/printable.h"
#include "core/system/terminal.h"
#include "core/system/wrapped_text.h"

namespace lockstep::log {
namespace {

constexpr std::size_t kHanging = 4;
constexpr const char* kPattern = "%^%l%$ %v";
std::atomic<std::size_t> columns{0};  // width of the terminal
std::atomic<Level> least_level{Level::info};
thread_local int quiet_in_thread = 0;  // Quiet objects of this thread
std::atomic<int> quiet_in_process{0};  // Quiet objects of the process scope

constexpr spdlog::level::level_enum kSpdlogLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                       spdlog::level::warn, spdlog::level::err};
static_assert(std::size(kSpdlogLevels) == std::size(kLevelWords));

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made =
        std::make_shared<spdlog::logger>("lockstep", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern(kPattern);
    made->set_level(spdlog::level::debug);  // write() drops the lines below the level
    return made;
  }();
  return *instance;
}

// The line wrapped to the terminal. The level and a blank, which the logger prints first, count for the
// width.
std::string fitted(Level level, const std::string& line) {
  const std::string before = fmt::format("{} ", kLevelWords[static_cast<std::size_t>(level)]);
  return wrapped(before + line, {.hanging = kHanging, .columns = columns}).substr(before.size());
}

void count(Quiet::Scope scope, int change) {
  if (scope == Quiet::Scope::thread)
    quiet_in_thread += change;
  else
    quiet_in_process += change;
}

}  // namespace

void set_level(Level level) { least_level = level; }

void set_level(std::string_view word) {
  const auto found = std::ranges::find(kLevelWords, word);
  CHECK(found != std::end(kLevelWords), "unknown log level {}: allowed are {}", word,
        fmt::join(kLevelWords, ", "));
  set_level(static_cast<Level>(found - std::begin(kLevelWords)));
}

void set_columns(std::size_t width) {
  columns = width;
  logger().set_pattern(std::string(width > 0 ? kClearLine : "") + kPattern);
}

Quiet::Quiet(Scope scope) : scope_(scope) { count(scope_, 1); }
Quiet::~Quiet() { count(scope_, -1); }

void write(Level level, std::string_view message) {
  if (level < least_level) return;
  if ((quiet_in_thread > 0 || quiet_in_process > 0) && level < Level::error) return;
  const int rank = current_rank();
  if (level < Level::warning && rank != 0) return;
  std::string line = fmt::format("[rank {}] {}", rank, printable(message));
  if (columns > 0) line = fitted(level, line);
  logger().log(kSpdlogLevels[static_cast<std::size_t>(level)], "{}", line);
}

void last_error(std::string_view message) {
  std::string line = fmt::format("[rank {}] {}", current_rank(), printable(message));
  if (columns > 0) line = fitted(Level::error, line);
  write_last_words(fmt::format("{}error {}\n", columns > 0 ? kClearLine : "", line));
}

}  // namespace lockstep::log
