// SPDX-License-Identifier: Apache-2.0
#include "launch/program/sweep/jobs/child_processes.h"

#include <csignal>
#include <map>

#include <gtest/gtest.h>

#include "core/files/file_text.h"
#include "core/system/job_signals.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

// Waits until `count` processes have ended. Returns their exit codes by process.
std::map<pid_t, int> codes_of(ChildProcesses& children, std::size_t count) {
  std::map<pid_t, int> codes;
  while (codes.size() < count)
    for (const ChildProcesses::Ended& ended : children.wait(0.1)) codes[ended.process] = ended.code;
  return codes;
}

ChildCommand shell(const std::string& lines, const std::filesystem::path& output) {
  return {.words = {"sh", "-c", lines}, .output = output};
}

TEST(ChildProcesses, ReturnTheirCodesAndWriteToTheirFiles) {
  const TemporaryFolder folder;
  ChildProcesses children;
  const pid_t fails = children.start(shell("echo one; echo two >&2; exit 65", folder.path() / "fails"));
  const pid_t killed = children.start(shell("kill -KILL $$", folder.path() / "killed"));
  const pid_t missing =
      children.start({.words = {"no-such-program-here"}, .output = folder.path() / "missing"});
  const std::map<pid_t, int> codes = codes_of(children, 3);
  EXPECT_EQ(codes.at(fails), 65);
  EXPECT_EQ(codes.at(killed), 128 + SIGKILL);
  EXPECT_EQ(codes.at(missing), 127);
  EXPECT_EQ(file_text(folder.path() / "fails"), "one\ntwo\n");
  EXPECT_EQ(file_text(folder.path() / "missing"),
            "lockstep: cannot start no-such-program-here: No such file or directory\n");
}

// Trainings get their GPUs through their environment.
TEST(ChildProcesses, HaveSeparateEnvironments) {
  const TemporaryFolder folder;
  ChildProcesses children;
  for (const char* gpus : {"0,1", "2,3"}) {
    ChildCommand command = shell("echo $CUDA_VISIBLE_DEVICES", folder.path() / gpus);
    command.environment = {{"CUDA_VISIBLE_DEVICES", gpus}};
    children.start(command);
  }
  codes_of(children, 2);
  EXPECT_EQ(file_text(folder.path() / "0,1"), "0,1\n");
  EXPECT_EQ(file_text(folder.path() / "2,3"), "2,3\n");
}

TEST(ChildProcesses, ReceiveSignalsThatTheParentBlocks) {
  const TemporaryFolder folder;
  sigset_t before;
  const sigset_t signals = job_signals();
  pthread_sigmask(SIG_BLOCK, &signals, &before);
  ChildProcesses children;
  const pid_t child = children.start(
      shell("trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done", folder.path() / "output"));
  while (file_text(folder.path() / "output").empty()) children.wait(0.01);
  children.send(child, SIGTERM);
  EXPECT_EQ(codes_of(children, 1).at(child), 3);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(ChildProcesses, EndWithTheObject) {
  const TemporaryFolder folder;
  pid_t child = 0;
  {
    ChildProcesses children;
    child = children.start(
        shell("trap '' TERM; echo ready; while :; do sleep 0.01; done", folder.path() / "output"));
    while (file_text(folder.path() / "output").empty()) children.wait(0.01);
  }
  EXPECT_EQ(kill(child, 0), -1);
}

}  // namespace
}  // namespace lockstep
