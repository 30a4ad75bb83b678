// SPDX-License-Identifier: Apache-2.0
#include "core/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "core/error.h"

namespace lockstep::log {
namespace {

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made =
        std::make_shared<spdlog::logger>("lockstep", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%^%l%$ %v");
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

}  // namespace

void set_level(Level level) { logger().set_level(to_spdlog(level)); }

void write(Level level, std::string_view message) {
  const int rank = current_rank();
  if (level < Level::warning && rank != 0) return;
  logger().log(to_spdlog(level), "[rank {}] {}", rank, message);
}

}  // namespace lockstep::log
