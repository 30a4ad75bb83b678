// SPDX-License-Identifier: Apache-2.0
#include "launch/program/sweep/jobs/child_processes.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/error.h"
#include "core/system/job_signals.h"

namespace lockstep {
namespace {

// The exit code of a shell that cannot start a program.
constexpr int kCannotExecute = 127;

int code_of_status(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

}  // namespace

ChildProcesses::ChildProcesses() {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGCHLD);
  sigprocmask(SIG_BLOCK, &ends, &masked_before_);
  ends_ = signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK);
  if (ends_ < 0) throw IoError(fmt::format("cannot wait for child processes: {}", std::strerror(errno)));
}

ChildProcesses::~ChildProcesses() {
  for (const pid_t process : running_) {
    kill(-process, SIGKILL);  // its process group
    waitpid(process, nullptr, 0);
  }
  close(ends_);
  sigprocmask(SIG_SETMASK, &masked_before_, nullptr);
}

void ChildProcesses::become(const ChildCommand& command, int output, pid_t parent) const {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(kCannotExecute);  // the parent has ended before prctl()
  // This process blocks the job's signals; a child handles them itself.
  const sigset_t signals = job_signals();
  sigprocmask(SIG_SETMASK, &masked_before_, nullptr);
  sigprocmask(SIG_UNBLOCK, &signals, nullptr);
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  for (const auto& [name, value] : command.environment) setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> words;
  for (const std::string& word : command.words) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execvp(words.front(), words.data());
  const std::string problem =
      fmt::format("lockstep: cannot start {}: {}\n", command.words.front(), std::strerror(errno));
  if (write(STDERR_FILENO, problem.data(), problem.size()) < 0) _exit(kCannotExecute);
  _exit(kCannotExecute);
}

pid_t ChildProcesses::start(const ChildCommand& command) {
  const int output = open(command.output.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (output < 0)
    throw IoError(fmt::format("cannot write {}: {}", command.output.string(), std::strerror(errno)));
  const pid_t parent = getpid(), process = fork();
  if (process == 0) become(command, output, parent);
  const int problem = errno;
  close(output);
  if (process < 0)
    throw IoError(fmt::format("cannot start {}: {}", command.words.front(), std::strerror(problem)));
  setpgid(process, process);  // parent and child both call it: either may run first
  running_.insert(process);
  return process;
}

std::vector<ChildProcesses::Ended> ChildProcesses::wait(double seconds) {
  pollfd waits = {.fd = ends_, .events = POLLIN, .revents = 0};
  poll(&waits, 1, static_cast<int>(std::max(0.0, seconds) * 1000));
  std::vector<Ended> ended;
  signalfd_siginfo told = {};
  while (read(ends_, &told, sizeof told) == sizeof told) continue;
  // One SIGCHLD may report several ended children.
  std::erase_if(running_, [&](pid_t process) {
    int status = 0;
    if (waitpid(process, &status, WNOHANG) != process) return false;
    ended.push_back({.process = process, .code = code_of_status(status)});
    return true;
  });
  return ended;
}

void ChildProcesses::send(pid_t process, int signal) const {
  if (running_.contains(process)) kill(process, signal);
}

}  // namespace lockstep
