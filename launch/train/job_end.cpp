// SPDX-License-Identifier: Apache-2.0
#include "launch/train/job_end.h"

#include <chrono>
#include <cstdio>
#include <thread>

#include <unistd.h>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/system/last_words.h"
#include "core/system/printable.h"
#include "core/system/terminal.h"

namespace lockstep {
namespace {

std::string error_line(const std::string& message) {
  return fitted("lockstep: " + printable(message), find_terminal(STDERR_FILENO)) + '\n';
}

[[noreturn]] void abort_job(World& world, int code, const std::string& message) {
  end_within(std::chrono::seconds(10), code);
  write_last_words(error_line(fmt::format("{}: {}", current_place(), message)));
  flush_output();
  world.abort(code);
}

}  // namespace

// Does not use fmt::print, which throws if standard error is closed.
void print_error(const std::string& message) {
  const std::string text = error_line(message);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

void let_rank_0_end_first() { std::this_thread::sleep_for(std::chrono::seconds(5)); }

int run_or_abort(World& world, const std::function<int()>& work) {
  try {
    return work();
  } catch (const std::exception& exception) {
    const Error error = as_error(exception);
    if (error.agreed() || world.size() == 1) throw error;
    abort_job(world, error.exit_code(), error.what());
  }
}

void leave_or_abort(World& world, int code) {
  try {
    world.leave();
  } catch (const std::exception& exception) {
    if (code != exit_code::done) world.abort(code);  // the reason is already printed
    abort_job(world, as_error(exception).exit_code(), exception.what());
  }
}

int end_before_world(const std::exception& exception) {
  const Error error = as_error(exception);
  const bool alike = dynamic_cast<const Error*>(&exception) != nullptr;
  const int rank = launched_rank();
  if (alike && rank != 0) let_rank_0_end_first();
  print_error(rank == 0 ? error.what() : fmt::format("rank {}: {}", rank, error.what()));
  return error.exit_code();
}

int run_job(const std::function<int(World& world)>& work, const WorldOptions& options) {
  try {
    World world = World::join(options);
    int code = exit_code::done;
    try {
      code = run_or_abort(world, [&] { return work(world); });
    } catch (const Error& error) {  // agreed by all ranks
      if (world.rank() == 0) print_error(error.what());
      code = error.exit_code();
    }
    leave_or_abort(world, code);
    return code;
  } catch (const std::exception& exception) {  // of World::join()
    return end_before_world(exception);
  }
}

}  // namespace lockstep
