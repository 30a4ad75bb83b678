// SPDX-License-Identifier: Apache-2.0
#include "launch/program/mpirun.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "comm/job/launcher.h"
#include "core/error.h"
#include "core/system/job_signals.h"
#include "core/text/text.h"
#include "launch/program/own_command.h"

namespace lockstep {
namespace {

constexpr const char* kFlag = "--ranks";
constexpr const char* kStartedByFlag = "LOCKSTEP_STARTED_RANKS";  // set for the ranks

void become(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const sigset_t ours = job_signals();
  pthread_sigmask(SIG_UNBLOCK, &ours, nullptr);
  // mpirun would read the caller's standard input to its end, for rank 0.
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  execvp(arguments.front(), arguments.data());
}

}  // namespace

std::vector<std::string> mpirun_words(int ranks) {
  std::vector<std::string> words = {"mpirun",    "-np",  std::to_string(ranks),
                                    "--bind-to", "none", "--oversubscribe"};
  if (geteuid() == 0) words.emplace_back("--allow-run-as-root");
  return words;
}

void start_ranks(int ranks) {
  if (const Launch launch = find_launch(&std::getenv); launch.launcher != Launcher::none) {
    throw UsageError(fmt::format(
        "{} {}: a launcher has already started {}; remove {}, or run lockstep without the launcher", kFlag,
        ranks, counted(launch.size, "rank"), kFlag));
  }
  if (ranks == 1) return;
  std::vector<std::string> words = mpirun_words(ranks);
  for (std::string& word : own_arguments({kFlag})) words.push_back(std::move(word));
  fmt::print(stderr, "{}\n", shell_command(words));
  std::fflush(stderr);
  setenv(kStartedByFlag, std::to_string(ranks).c_str(), 1);
  become(words);
  throw ConfigError(
      fmt::format("cannot start mpirun: {}; install Open MPI (Debian: openmpi-bin), with which lockstep was "
                  "built, or add its folder to PATH",
                  std::strerror(errno)));
}

std::string job_command() {
  std::vector<std::string> words = own_arguments();
  if (const char* ranks = std::getenv(kStartedByFlag); ranks != nullptr && words.size() > 1)
    words.insert(words.begin() + 2, {kFlag, std::string(ranks)});
  return shell_command(words);
}

std::string command_of_ranks(int ranks, const std::vector<std::string>& words) {
  std::vector<std::string> all = words;
  if (ranks > 1 && std::getenv(kStartedByFlag) != nullptr && words.size() > 1)
    all.insert(all.begin() + 2, {kFlag, std::to_string(ranks)});
  else if (ranks > 1)
    all.insert(all.begin(), {"mpirun", "-np", std::to_string(ranks)});
  return shell_command(all);
}

}  // namespace lockstep
