// SPDX-License-Identifier: Apache-2.0
#include "core/log.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

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
thread_local bool thread_is_quiet = false;

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made =
        std::make_shared<spdlog::logger>("lockstep", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern(kPattern);
    return made;
  }();
  return *instance;
}

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warning:
      return spdlog::level::warn;
    case Level::error:
      return spdlog::level::err;
    case Level::off:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

Level level_of(spdlog::level::level_enum level) {
  for (const Level each : {Level::debug, Level::info, Level::warning, Level::error})
    if (to_spdlog(each) == level) return each;
  return Level::off;
}

// The line wrapped to the terminal. The level and a blank, which the logger prints first, count for the
// width.
std::string fitted(spdlog::level::level_enum level, const std::string& line) {
  const auto name = spdlog::level::to_string_view(level);
  const std::string before = std::string(name.data(), name.size()) + ' ';
  return wrapped(before + line, {.hanging = kHanging, .columns = columns}).substr(before.size());
}

}  // namespace

Level set_level(Level level) {
  const Level before = level_of(logger().level());
  logger().set_level(to_spdlog(level));
  return before;
}

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

Quiet::Quiet() : before_(std::exchange(thread_is_quiet, true)) {}
Quiet::~Quiet() { thread_is_quiet = before_; }

void write(Level level, std::string_view message) {
  if (thread_is_quiet && level < Level::error) return;
  const int rank = current_rank();
  if (level < Level::warning && rank != 0) return;
  std::string line = fmt::format("[rank {}] {}", rank, printable(message));
  if (columns > 0) line = fitted(to_spdlog(level), line);
  logger().log(to_spdlog(level), "{}", line);
}

void last_error(std::string_view message) {
  std::string line = fmt::format("[rank {}] {}", current_rank(), printable(message));
  if (columns > 0) line = fitted(spdlog::level::err, line);
  write_last_words(fmt::format("{}error {}\n", columns > 0 ? kClearLine : "", line));
}

}  // namespace lockstep::log
