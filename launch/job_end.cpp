// SPDX-License-Identifier: Apache-2.0
#include "launch/job_end.h"

#include <cstdio>

#include "core/error.h"
#include "launch/agreement.h"

namespace lockstep {
namespace {

[[noreturn]] void abort_job(World& world, int code, const std::string& message) {
  print_error(fmt::format("{}: {}", current_place(), message));
  std::fflush(nullptr);
  world.abort(code);
}

}  // namespace

void print_error(const std::string& message) { fmt::print(stderr, "lockstep: {}\n", message); }

int run_or_abort(World& world, const std::function<int()>& work) {
  try {
    return work();
  } catch (const std::exception& exception) {
    const Error error = as_error(exception);
    if (error.agreed() || world.size() == 1) throw error;
    abort_job(world, error.exit_code(), error.what());
  }
}

}  // namespace lockstep
