// SPDX-License-Identifier: Apache-2.0
#include "comm/watchdog/evidence.h"

#include <chrono>

#include <fmt/format.h>

#include "core/system/backtrace.h"
#include "core/text/text.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kStackWait{300};  // for a thread to report its stack

}  // namespace

std::string own_stacks() {
  std::string text;
  for (const ThreadStack& stack : backtraces(kStackWait)) {
    text += fmt::format("{}{}:", text.empty() ? "" : "\n", stack.thread);
    if (stack.frames.empty()) text += " did not report its stack";
    for (const std::string& frame : stack.frames) text += "\n  " + frame;
  }
  return text;
}

std::string seen_of(const std::string& process_number) {
  const int process = number_from<int>(process_number).value_or(0);
  std::string text = process > 0 ? describe_process(process) : "";
  if (text.empty()) text = fmt::format("process {} no longer exists", process_number);
  return text;
}

}  // namespace lockstep
