// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/run_files/line_journal.h"

#include <cerrno>
#include <cstddef>
#include <thread>

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "core/error.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

// Makes fsync() fail with EIO on the calling thread. Returns false if the system refuses the filter.
bool break_fsync() {
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fsync, 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EIO),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program = {.len = 4, .filter = code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(LineJournal, FailedSyncLeavesNoLine) {
  const TemporaryFolder folder("line_journal");
  const std::filesystem::path path = folder.path() / "journal.jsonl";
  const LineJournal journal(path);
  journal.add("one");
  bool broken = false;
  std::string message;
  std::thread([&] {
    broken = break_fsync();
    if (broken) message = message_of<IoError>([&] { journal.add("two"); });
  }).join();
  if (!broken) GTEST_SKIP() << "needs seccomp filters";
  expect_parts(message, {path.string()});
  journal.add("three");
  EXPECT_EQ(LineJournal(path).found(), (std::vector<std::string>{"one", "three"}));
}

}  // namespace
}  // namespace lockstep
