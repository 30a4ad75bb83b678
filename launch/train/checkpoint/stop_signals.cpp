// SPDX-License-Identifier: Apache-2.0
#include "launch/train/checkpoint/stop_signals.h"

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <thread>

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "comm/job/launcher.h"
#include "core/error.h"
#include "core/system/backtrace.h"
#include "core/system/job_signals.h"
#include "core/system/last_words.h"

namespace lockstep {
namespace {

// Written by the signal handlers.
std::atomic<int> stop_asked{0};
std::atomic<bool> save_asked{false};
std::atomic<int> wake_watcher{-1};

void ask_to_stop(int number) {
  const int saved = errno;
  int none = 0;
  if (stop_asked.compare_exchange_strong(none, number)) static_cast<void>(!write(wake_watcher, "s", 1));
  errno = saved;
}

void ask_to_save(int) { save_asked = true; }

void handle_signal(int number, void (*handler)(int)) {
  struct sigaction action = {};
  sigaction(number, nullptr, &action);
  if (action.sa_handler == SIG_IGN) return;
  action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(number, &action, nullptr);
}

// True on the one rank that prints the line. A launcher also sends SIGTERM after another rank has failed and
// reported why.
bool prints_line_for(int number) {
  const Launch launch = find_launch(&std::getenv);
  return launch.launcher == Launcher::none || (launch.rank == 0 && number != SIGTERM);
}

}  // namespace

void block_job_signals() {
  const sigset_t signals = job_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

StopSignals& StopSignals::of_process() {
  static auto* const signals = new StopSignals;
  return *signals;
}

StopSignals::StopSignals() {
  int pipe[2];
  CHECK(pipe2(pipe, O_CLOEXEC) == 0, "cannot create a pipe");
  wake_ = pipe[0];
  wake_watcher = pipe[1];
  for (const JobSignal& each : kStopSignals) handle_signal(each.number, ask_to_stop);
  handle_signal(SIGUSR2, ask_to_save);
  // The name is without kThreadPrefix: the thread does not answer requests for its stack.
  start_without_signals("signals", [this] {
    const sigset_t ours = job_signals();
    pthread_sigmask(SIG_UNBLOCK, &ours, nullptr);
    watch();
  }).detach();
  block_job_signals();
}

void StopSignals::watch() {
  char byte = 0;
  while (read(wake_, &byte, 1) < 0 && errno == EINTR) continue;
  const double grace = grace_seconds_;
  if (grace < 0) {
    end_process(exit_code::resumable, !quiet_ && prints_line_for(stop())
                                          ? fmt::format("lockstep: {}: the command was stopped before it was "
                                                        "done; repeat it to start again\n",
                                                        signal_name(stop()))
                                          : std::string());
  }
  const auto deadline =
      std::chrono::steady_clock::now() +
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(grace));
  write_last_words(
      fmt::format("lockstep: rank {}: {} asks to stop; the trained state is saved at the end of a step, "
                  "unless a rank has failed or the job is killed before; the process ends within {:g} s (see "
                  "run.grace_seconds)\n",
                  current_rank(), signal_name(stop()), grace));
  std::this_thread::sleep_until(deadline);
  end_process(
      exit_code::resumable,
      fmt::format("lockstep: rank {}: {}: not ended within {:g} s (see run.grace_seconds); the process "
                  "ends now without saving, and --resume auto resumes from the last checkpoint\n",
                  current_rank(), signal_name(stop()), grace));
}

void StopSignals::allow_grace(double seconds) { grace_seconds_ = seconds; }

void StopSignals::end_quietly() { quiet_ = true; }

int StopSignals::stop() const { return stop_asked; }

bool StopSignals::take_request() { return save_asked.exchange(false); }

}  // namespace lockstep
