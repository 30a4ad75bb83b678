// SPDX-License-Identifier: Apache-2.0
//
// Converts errors to exit codes.
#include "launch/program/run.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "comm/job/launcher.h"
#include "comm/job/start_guard.h"
#include "core/error.h"
#include "core/log.h"
#include "core/system/terminal.h"
#include "launch/program/commands/command_line.h"
#include "launch/program/commands/commands.h"
#include "launch/program/mpirun.h"
#include "launch/train/checkpoint/stop_signals.h"
#include "launch/train/hold.h"
#include "launch/train/job_end.h"
#include "launch/train/watch/waiting.h"

namespace lockstep {
namespace {

int print_text(const Command& command) {
  const bool done = command.exit_code == exit_code::done;
  if (launched_rank() != 0) {
    if (done) return command.exit_code;
    let_rank_0_end_first();
  }
  std::fwrite(command.text.data(), 1, command.text.size(), done ? stdout : stderr);
  return command.exit_code;
}

int run_command(const Command& command) {
  if (command.entry->text != nullptr) return print_text(command);
  log::set_level(command.log_level);
  if (command.entry->alone != nullptr) return command.entry->alone(command);
  hold_in("start");
  return run_job([&](World& world) { return command.entry->in_world(command, world); },
                 {.start_limit = start_limit(&std::getenv)});
}

// Opens /dev/null in place of the standard descriptors that the caller closed. Otherwise the next file that
// is opened would receive the output, for example the pipe that wakes StopSignals. Standard output is not
// writable: it stays an error that its results are lost.
void open_standard_descriptors() {
  for (const int each : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(each, F_GETFD) < 0)
      static_cast<void>(open("/dev/null", each == STDERR_FILENO ? O_WRONLY : O_RDONLY));
}

// Raises the limit: a dataset of a thousand files keeps all of them open. The low default is for programs
// that use select(), which this one does not.
void allow_many_open_files() {
  rlimit limit = {};
  constexpr rlim_t kWanted = 65536;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kWanted) return;
  limit.rlim_cur = std::min(kWanted, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Requests SIGTERM when mpirun ends, in any way. Open MPI kills the ranks within a second, enough to save a
// step.
void stop_with_launcher() {
  if (find_launch(&std::getenv).launcher == Launcher::mpirun) prctl(PR_SET_PDEATHSIG, SIGTERM);
}

}  // namespace

int run(int argc, char** argv, const Registry& registry) {
  open_standard_descriptors();
  block_job_signals();
  // bound_waiting() restarts the program under another name; hooks look for this one.
  prctl(PR_SET_NAME, program_invocation_short_name);
  stop_with_launcher();
  allow_many_open_files();
  if (const Terminal terminal = find_terminal(STDERR_FILENO); terminal.present)
    log::set_columns(static_cast<std::size_t>(terminal.columns));
  try {
    const Command command = parse_command_line(argc, argv, registry);
    if (command.ranks > 0) start_ranks(command.ranks);
    if (command.entry->in_world != nullptr) bound_waiting(argv);
    StopSignals::of_process();
    const int code = run_command(command);
    // The results of a training are in files.
    const bool trains = command.name == "train" && !command.print_config;
    if (code == exit_code::done && !trains) flush_or_throw();
    return code;
  } catch (const std::exception& exception) {
    return end_before_world(exception);
  }
}

}  // namespace lockstep
