// SPDX-License-Identifier: Apache-2.0
#include "core/system/last_words.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <utility>
#include <vector>

#include <poll.h>
#include <unistd.h>

namespace lockstep {
namespace {

// Read by the SIGALRM handler.
std::atomic<int> code_at_the_limit{0};

bool takes_more(int descriptor, std::chrono::milliseconds wait) {
  pollfd file = {.fd = descriptor, .events = POLLOUT, .revents = 0};
  return poll(&file, 1, static_cast<int>(std::max<std::int64_t>(0, wait.count()))) > 0 &&
         (file.revents & POLLOUT) != 0;
}

// Never destroyed: end_process() may run while main() returns.
struct Removals {
  std::timed_mutex mutex;
  std::vector<const std::filesystem::path*> paths;
};
Removals& removals() {
  static auto* const all = new Removals;
  return *all;
}

}  // namespace

RemovedAtEnd::RemovedAtEnd(std::filesystem::path path) : path_(std::move(path)) {
  const std::lock_guard lock(removals().mutex);
  removals().paths.push_back(&path_);
}

RemovedAtEnd::~RemovedAtEnd() {
  const std::lock_guard lock(removals().mutex);
  std::erase(removals().paths, &path_);
}

void end_within(std::chrono::seconds limit, int exit_code) {
  code_at_the_limit = exit_code;
  std::signal(SIGALRM, [](int) { _exit(code_at_the_limit); });
  sigset_t alarm_signal;
  sigemptyset(&alarm_signal);
  sigaddset(&alarm_signal, SIGALRM);
  pthread_sigmask(SIG_UNBLOCK, &alarm_signal, nullptr);
  alarm(static_cast<unsigned>(limit.count()));
}

// A writable pipe accepts PIPE_BUF bytes without blocking.
void write_last_words(std::string_view text) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::seconds(1);
  while (!text.empty()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (!takes_more(STDERR_FILENO, left)) return;
    const ssize_t written = write(STDERR_FILENO, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
    if (written < 0 && errno != EINTR && errno != EAGAIN) return;
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void flush_output() {
  if (ftrylockfile(stdout) != 0) return;
  if (takes_more(STDOUT_FILENO, std::chrono::milliseconds(0))) std::fflush(stdout);
  funlockfile(stdout);
}

void end_process(int exit_code, std::string_view text) {
  end_within(std::chrono::seconds(2), exit_code);
  write_last_words(text);
  if (std::unique_lock lock(removals().mutex, std::chrono::milliseconds(100)); lock.owns_lock())
    for (const std::filesystem::path* path : removals().paths) unlink(path->c_str());
  flush_output();
  _exit(exit_code);
}

}  // namespace lockstep
