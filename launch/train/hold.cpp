// SPDX-License-Identifier: Apache-2.0
#include "launch/train/hold.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "comm/world.h"

namespace lockstep {

void hold_in(const char* phase) {
  static const char* const held = std::getenv("LOCKSTEP_HOLD");
  if (held == nullptr) return;
  const std::string text = held, start = fmt::format("{}:{}:", phase, launched_rank());
  static std::atomic<bool> was_held{false};
  if (!text.starts_with(start) || was_held.exchange(true)) return;
  const std::filesystem::path file = text.substr(start.size());
  std::ofstream(file) << phase;
  std::error_code ignored;
  while (std::filesystem::exists(file, ignored)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

}  // namespace lockstep
