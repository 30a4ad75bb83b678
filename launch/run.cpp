// SPDX-License-Identifier: Apache-2.0
//
// Here errors become exit codes.
#include "launch/run.h"

#include <cstdio>
#include <exception>

#include <unistd.h>

#include "core/error.h"
#include "core/log.h"
#include "launch/command_line.h"
#include "launch/commands.h"
#include "launch/job_end.h"
#include "launch/terminal.h"
#include "launch/waiting.h"

namespace lockstep {
namespace {

int run_in_world(const Command& command) {
  World world = World::join();
  int code = exit_code::done;
  try {
    code = command.entry->in_world(command, world);
  } catch (const Error& error) {  // on every rank
    if (world.rank() == 0) print_error(error.what());
    code = error.exit_code();
  }
  leave_or_abort(world, code);
  return code;
}

int print_text(const Command& command) {
  const bool done = command.exit_code == exit_code::done;
  if (launched_rank() == 0) {
    std::fwrite(command.text.data(), 1, command.text.size(), done ? stdout : stderr);
  } else if (!done) {
    let_rank_0_end_first();
  }
  return command.exit_code;
}

}  // namespace

int run(int argc, char** argv, const Registry& registry) {
  if (const Terminal terminal = find_terminal(STDERR_FILENO); terminal.present)
    log::set_columns(static_cast<std::size_t>(terminal.columns));
  try {
    const Command command = parse_command_line(argc, argv, registry);
    if (command.entry->text != nullptr) return print_text(command);
    if (command.entry->alone != nullptr) return command.entry->alone(command);
    bound_waiting(argv);
    return run_in_world(command);
  } catch (const Error& error) {
    if (launched_rank() == 0) {
      print_error(error.what());
    } else {
      let_rank_0_end_first();
    }
    return error.exit_code();
  } catch (const std::exception& error) {
    print_error(error.what());
    return exit_code::failed;
  }
}

}  // namespace lockstep
