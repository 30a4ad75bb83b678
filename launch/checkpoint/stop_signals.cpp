// SPDX-License-Identifier: Apache-2.0
#include "launch/checkpoint/stop_signals.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "core/error.h"

namespace lockstep {
namespace {

constexpr std::array kStopping = {SIGUSR1, SIGTERM, SIGINT, SIGHUP};
constexpr std::int64_t kSameRequestNs = 1'000'000'000;

// A handler finds nothing but what is global.
std::atomic<int> stop_asked{0};
std::atomic<std::int64_t> stop_asked_ns{0};
std::atomic<bool> save_asked{false};
std::atomic<bool> trains{false};
std::atomic<bool> speaks{false};
std::atomic<int> wake_watcher{-1};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

std::array<struct sigaction, kStopping.size() + 1> handlers_before;

std::int64_t clock_ns() {
  timespec time = {};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec;
}

// SIGTERM is what a launcher sends where another rank has failed, too, which has told why.
void end_before_training(int number) {
  static constexpr char kLine[] =
      "lockstep: stopped before the first step: there is nothing to save, the same command starts again\n";
  if (speaks && number != SIGTERM) static_cast<void>(!write(STDERR_FILENO, kLine, sizeof(kLine) - 1));
  _exit(exit_code::resumable);
}

// Only what signal-safety(7) allows.
void ask_to_stop(int number) {
  if (!trains) end_before_training(number);
  const int saved = errno;
  int none = 0;
  if (stop_asked.compare_exchange_strong(none, number)) {
    stop_asked_ns = clock_ns();
    if (const int descriptor = wake_watcher; descriptor >= 0) static_cast<void>(!write(descriptor, "s", 1));
  } else if (clock_ns() - stop_asked_ns > kSameRequestNs) {
    signal(number, SIG_DFL);
    raise(number);
  }
  errno = saved;
}

void ask_to_save(int) { save_asked = true; }

void handle_signal(int number, void (*handler)(int), struct sigaction& old) {
  sigaction(number, nullptr, &old);
  if (old.sa_handler == SIG_IGN) return;
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(number, &action, nullptr);
}

}  // namespace

StopSignals::StopSignals(double grace_seconds) {
  CHECK(pipe2(pipe_, O_CLOEXEC) == 0, "no pipe");
  stop_asked = 0;
  save_asked = false;
  trains = false;
  speaks = current_rank() == 0;
  wake_watcher = pipe_[1];
  sigset_t ours, all, others;
  sigemptyset(&ours);
  for (const int number : kStopping) sigaddset(&ours, number);
  sigaddset(&ours, SIGUSR2);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &masked_before_);
  watcher_ = std::thread([this, grace_seconds, ours] {
    pthread_sigmask(SIG_UNBLOCK, &ours, nullptr);
    watch(grace_seconds);
  });
  sigorset(&others, &masked_before_, &ours);
  pthread_sigmask(SIG_SETMASK, &others, nullptr);
  for (std::size_t i = 0; i < kStopping.size(); ++i)
    handle_signal(kStopping[i], ask_to_stop, handlers_before[i]);
  handle_signal(SIGUSR2, ask_to_save, handlers_before.back());
}

StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < kStopping.size(); ++i) sigaction(kStopping[i], &handlers_before[i], nullptr);
  sigaction(SIGUSR2, &handlers_before.back(), nullptr);
  wake_watcher = -1;
  close(pipe_[1]);
  watcher_.join();
  pthread_sigmask(SIG_SETMASK, &masked_before_, nullptr);
  close(pipe_[0]);
}

// The end of the pipe is the end of this.
void StopSignals::watch(double grace_seconds) {
  char byte = 0;
  while (read(pipe_[0], &byte, 1) < 0 && errno == EINTR) {
  }
  if (byte == 0) return;
  pollfd ended = {.fd = pipe_[0], .events = POLLIN, .revents = 0};
  const std::int64_t deadline = clock_ns() + static_cast<std::int64_t>(1e9 * grace_seconds);
  for (std::int64_t left; (left = deadline - clock_ns()) > 0;) {
    if (poll(&ended, 1, static_cast<int>(std::min<std::int64_t>(left / 1'000'000 + 1, 1'000'000))) > 0)
      return;
  }
  std::fprintf(stderr,
               "lockstep: rank %d: %s, and what it was doing did not end in run.grace_seconds = %g: it ends "
               "now, and --resume auto goes on from the last checkpoint\n",
               current_rank(), signal_name(stop()), grace_seconds);
  std::fflush(nullptr);
  std::_Exit(exit_code::resumable);
}

void StopSignals::begin_training() { trains = true; }

int StopSignals::stop() const { return stop_asked; }

bool StopSignals::take_request() { return save_asked.exchange(false); }

const char* signal_name(int number) {
  switch (number) {
    case SIGUSR1:
      return "SIGUSR1";
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGHUP:
      return "SIGHUP";
    default:
      return "a signal";
  }
}

}  // namespace lockstep
