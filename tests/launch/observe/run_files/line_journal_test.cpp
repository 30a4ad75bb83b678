// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/run_files/line_journal.h"

#include <cerrno>
#include <thread>

#include <gtest/gtest.h>
#include <sys/syscall.h>

#include "core/error.h"
#include "tests/failing_call.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

TEST(LineJournal, FailedSyncLeavesNoLine) {
  const TemporaryFolder folder("line_journal");
  const std::filesystem::path path = folder.path() / "journal.jsonl";
  const LineJournal journal(path);
  journal.add("one");
  bool broken = false;
  std::string message;
  std::thread([&] {
    broken = let_call_fail(SYS_fsync, EIO);
    if (broken) message = message_of<IoError>([&] { journal.add("two"); });
  }).join();
  if (!broken) GTEST_SKIP() << "needs seccomp filters";
  expect_parts(message, {path.string()});
  journal.add("three");
  EXPECT_EQ(LineJournal(path).found(), (std::vector<std::string>{"one", "three"}));
}

}  // namespace
}  // namespace lockstep
