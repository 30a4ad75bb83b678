// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/run_files/event_command.h"

#include <cerrno>
#include <csignal>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep {
namespace {

// Only the owner can read it: messages of the shell may repeat secrets of the command.
int open_log(const std::filesystem::path& log) {
  const int descriptor =
      open(log.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
  return descriptor >= 0 ? descriptor : open("/dev/null", O_WRONLY | O_CLOEXEC);
}

}  // namespace

// The shell starts the command in the background and ends, so this process has no child to wait for later.
int tell_command(const std::string& command, const std::string& event, const std::filesystem::path& log) {
  const int output = open_log(log);
  if (output < 0) return errno;
  std::string program = "sh", flag = "-c", script = "{ " + command + "\n} &",
              told = "LOCKSTEP_EVENT=" + event;
  char* arguments[] = {program.data(), flag.data(), script.data(), nullptr};
  std::vector<char*> variables{told.data()};
  // The job itself may have been started by an event's command.
  for (char** each = environ; *each != nullptr; ++each)
    if (!std::string_view(*each).starts_with("LOCKSTEP_EVENT=")) variables.push_back(*each);
  variables.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  for (const int each : {STDOUT_FILENO, STDERR_FILENO})
    posix_spawn_file_actions_adddup2(&files, output, each);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  pid_t shell = 0;
  const int error = posix_spawn(&shell, "/bin/sh", &files, &attributes, arguments, variables.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  close(output);
  if (error != 0) return error;
  int status = 0;
  while (waitpid(shell, &status, 0) < 0 && errno == EINTR) continue;
  return 0;
}

}  // namespace lockstep
