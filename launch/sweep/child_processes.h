// SPDX-License-Identifier: Apache-2.0
//
// ChildProcesses: other programs that this one starts, waits for and stops. Each has a process group of its
// own, so that Ctrl-C reaches this process alone, and gets SIGTERM from the system where this process is
// killed.
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
  std::vector<std::string> words;  // the first is a path, or is looked for in PATH
  std::vector<std::pair<std::string, std::string>> environment = {};  // in place of what this process has
  std::filesystem::path output;                                       // what it writes is appended here
};

class ChildProcesses {
 public:
  struct Ended {
    pid_t process = 0;
    int code = 0;  // its exit code; 128 and the signal's number, where one ended it
  };

  // One at a time, in a process whose other threads block SIGCHLD. Throws IoError.
  ChildProcesses();
  // Kills those that run.
  ~ChildProcesses();
  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;

  // Throws IoError where the system has no room for a process, or the output cannot be opened.
  pid_t start(const ChildCommand& command);
  // Returns those that ended as soon as there are any, or after so many seconds.
  std::vector<Ended> wait(double seconds);
  void send(pid_t process, int signal) const;
  // To all of its group.
  void kill(pid_t process) const;

 private:
  [[noreturn]] void become(const ChildCommand& command, int output, pid_t parent) const;

  sigset_t masked_before_;
  int ends_ = -1;  // a descriptor that can be read when one has ended
  std::set<pid_t> running_;
};

}  // namespace lockstep
