// SPDX-License-Identifier: Apache-2.0
#include "launch/job_end.h"

#include <cstdio>

#include "core/error.h"

namespace lockstep {
namespace {

[[noreturn]] void abort_job(World& world, int code, const std::string& message) {
  print_error(fmt::format("{}: {}", current_place(), message));
  std::fflush(nullptr);
  world.abort(code);
}

}  // namespace

// Not by fmt::print, which throws where nobody reads standard error any more.
void print_error(const std::string& message) {
  const std::string line = fmt::format("lockstep: {}\n", message);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

int run_or_abort(World& world, const std::function<int()>& work) {
  try {
    return work();
  } catch (const Error& error) {
    if (error.agreed() || world.size() == 1) throw;
    abort_job(world, error.exit_code(), error.what());
  } catch (const std::exception& error) {
    if (world.size() == 1) throw;
    abort_job(world, exit_code::failed, error.what());
  }
}

}  // namespace lockstep
