// SPDX-License-Identifier: Apache-2.0
//
// ChildProcesses: other programs that this one starts, waits for and stops. Each has a process group of its
// own, so that Ctrl-C reaches this process alone, and gets SIGTERM from the system where this process is
// killed. SIGINT, SIGTERM and SIGHUP are no longer deadly as long as this lives: wait() tells of them.
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
  struct News {
    std::vector<Ended> ended = {};
    int signal = 0;  // that asks this process to stop; 0: none came
  };

  // One at a time, in a process without other threads. Throws IoError.
  ChildProcesses();
  // Kills those that run.
  ~ChildProcesses();
  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;

  // Throws IoError where the system has no room for a process, or the output cannot be opened.
  pid_t start(const ChildCommand& command);
  // Returns as soon as there is any news, or after so many seconds.
  News wait(double seconds);
  void send(pid_t process, int signal) const;
  // To all of its group.
  void kill(pid_t process) const;

 private:
  [[noreturn]] void become(const ChildCommand& command, int output, pid_t parent) const;

  sigset_t heeded_, masked_before_;
  int signals_ = -1;  // a descriptor that tells of them
  std::set<pid_t> running_;
};

}  // namespace lockstep
