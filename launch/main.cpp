// SPDX-License-Identifier: Apache-2.0
//
// lockstep: the program. Here errors become exit codes.
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
  try {
    switch (command.kind) {
      case CommandKind::train:
        return run_train(command, world);
      case CommandKind::profile:
        return run_profile(command, world);
      default:
        return run_plan(command, world);
    }
  } catch (const Error& error) {  // on every rank
    if (world.rank() == 0) print_error(error.what());
    return error.exit_code();
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  if (const Terminal terminal = find_terminal(STDERR_FILENO); terminal.present)
    log::set_columns(static_cast<std::size_t>(terminal.columns));
  try {
    const Command command = parse_command_line(argc, argv);
    switch (command.kind) {
      case CommandKind::text:
        if (launched_rank() == 0) {
          std::fwrite(command.text.data(), 1, command.text.size(),
                      command.exit_code == exit_code::done ? stdout : stderr);
        } else if (command.exit_code != exit_code::done) {
          let_rank_0_end_first();
        }
        return command.exit_code;
      case CommandKind::info:
        return run_info();
      case CommandKind::init:
        return launched_rank() == 0 ? run_init(command) : exit_code::done;
      case CommandKind::train:
      case CommandKind::plan:
      case CommandKind::profile:
        bound_waiting(argv);
        return run_in_world(command);
    }
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
