// SPDX-License-Identifier: Apache-2.0
//
// Jobs that end by comm.timeout_seconds after a fault.
#pragma once

#include <string>

#include <fmt/format.h>

#include "core/error.h"
#include "tests/launch/program/program.h"

namespace lockstep {

// Part of the line that a rank prints when --inject stop, hang or link-down happens.
inline constexpr const char* kInjectedFault = "an injected fault";

// run(setting) runs the job with "comm.timeout_seconds=2". This limit also holds for the start and for the
// steps before the fault. A busy machine may exceed it there: then the output does not contain `sign`, which
// is printed when the fault happens, and the job runs again with twice the limit, up to 64 s.
template <typename Run>
ProgramResult run_until_fault(const std::string& sign, const Run& run) {
  for (int seconds = 2;; seconds *= 2) {
    ProgramResult result = run(fmt::format("comm.timeout_seconds={}", seconds));
    const bool too_early = result.exit_code == exit_code::resumable && count(result.output, sign) == 0;
    if (!too_early || seconds == 64) return result;
  }
}

}  // namespace lockstep
