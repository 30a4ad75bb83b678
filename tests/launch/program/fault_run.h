// SPDX-License-Identifier: Apache-2.0
//
// Jobs that end by comm.timeout_seconds after a fault.
#pragma once

#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/launch/program/program.h"

namespace lockstep {

// Part of the line that a rank prints when --inject stop, hang or link-down happens.
inline constexpr const char* kInjectedFault = "an injected fault";

// run(setting) runs the job with "comm.timeout_seconds=2". This limit also holds for the start and for the
// steps before the fault. A busy machine may exceed it there: then the output does not contain `sign`, which
// is printed when the fault happens, and the job runs again with twice the limit. A job that hangs before its
// fault ends in the same way. So the output of every such job is printed, benchmarks/test_runs.py lists the
// test, and the test fails if 64 s do not suffice.
template <typename Run>
ProgramResult run_until_fault(const std::string& sign, const Run& run) {
  for (int seconds = 2;; seconds *= 2) {
    ProgramResult result = run(fmt::format("comm.timeout_seconds={}", seconds));
    const bool too_early = result.exit_code == exit_code::resumable && count(result.output, sign) == 0;
    if (!too_early) return result;
    if (seconds == 64) {
      ADD_FAILURE() << "the job ended before its fault, even with comm.timeout_seconds=64:\n"
                    << result.output;
      return result;
    }
    fmt::print("a job ended before its fault, with comm.timeout_seconds={}; its output:\n{}\n", seconds,
               result.output);
  }
}

}  // namespace lockstep
