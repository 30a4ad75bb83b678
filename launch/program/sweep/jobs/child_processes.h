// SPDX-License-Identifier: Apache-2.0
//
// ChildProcesses: starts, waits for and stops other programs. Each child has its own process group, so that
// Ctrl-C reaches only this process. The system sends it SIGTERM when this process ends.
#pragma once

#include <csignal>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

namespace lockstep {

struct ChildCommand {
  std::vector<std::string> words;  // the first is a path, or a name to find in PATH
  std::vector<std::pair<std::string, std::string>> environment = {};  // added to this process's
  std::filesystem::path output;                                       // appends standard output and error
};

class ChildProcesses {
 public:
  struct Ended {
    pid_t process = 0;
    int code = 0;  // exit code; after a signal 128 + its number
  };

  // At most one exists at a time; the other threads of the process block SIGCHLD. Throws IoError.
  ChildProcesses();
  // Kills running children.
  ~ChildProcesses();
  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;

  // Throws IoError where the process cannot be created or the output cannot be opened.
  pid_t start(const ChildCommand& command);
  // Waits up to `seconds` for a child to end, and returns all that have ended.
  std::vector<Ended> wait(double seconds);
  void send(pid_t process, int signal) const;

 private:
  [[noreturn]] void become(const ChildCommand& command, int output, pid_t parent) const;

  sigset_t masked_before_;
  int ends_ = -1;  // signalfd of SIGCHLD
  std::set<pid_t> running_;
};

}  // namespace lockstep
