// SPDX-License-Identifier: Apache-2.0
#include "data/containers/unpacked_file.h"

#include <barrier>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/error.h"
#include "data/formats/readable_file.h"
#include "tests/data/idx_files.h"
#include "tests/failing_call.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

// Each rank opens the same files at the same time.
TEST(UnpackedFile, OneOfManyCallersUnpacks) {
  constexpr std::size_t kCallers = 8, kBytes = std::size_t{4} << 20;
  const TemporaryFolder folder;
  const std::filesystem::path packed = folder.path() / "train.tar.gz";
  folder.write("train.tar.gz", gzip(Bytes(kBytes, 7)));
  std::vector<std::optional<ReadableFile>> opened(kCallers);
  std::barrier begin(kCallers);
  {
    std::vector<std::jthread> callers;
    for (std::size_t i = 0; i < kCallers; ++i)
      callers.emplace_back([&, i] {
        begin.arrive_and_wait();
        opened[i].emplace(unpacked_file(packed));
      });
  }
  std::set<ino_t> files;
  for (const std::optional<ReadableFile>& file : opened) {
    EXPECT_EQ(file->bytes(), kBytes);
    struct stat status = {};
    ASSERT_EQ(fstat(file->descriptor(), &status), 0);
    files.insert(status.st_ino);
  }
  EXPECT_EQ(files.size(), 1u) << "several callers unpacked the file";
}

TEST(UnpackedFile, AKilledProcessLeavesNothing) {
  const TemporaryFolder folder;
  const std::filesystem::path packed = folder.path() / "train.tar.gz";
  folder.write("train.tar.gz", gzip(Bytes(std::size_t{4} << 20, 7)));
  const int unnamed = ::open(folder.path().c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (unnamed < 0) GTEST_SKIP() << "needs a file system with O_TMPFILE";
  ::close(unnamed);
  const auto unpack_until_killed = [&] {
    std::signal(SIGXFSZ, [](int) { std::raise(SIGKILL); });
    const rlimit half = {.rlim_cur = 2 << 20, .rlim_max = 2 << 20};
    setrlimit(RLIMIT_FSIZE, &half);
    unpacked_file(packed);
  };
  EXPECT_EXIT(unpack_until_killed(), testing::KilledBySignal(SIGKILL), "");
  const std::filesystem::directory_iterator files(folder.path());
  EXPECT_EQ(std::distance(files, std::filesystem::directory_iterator()), 1) << "the packed file is not alone";
}

// Another process may read an earlier copy, perhaps on another node.
TEST(UnpackedFile, EarlierCopiesAreNamedAndKept) {
  const TemporaryFolder folder;
  const char* const others[] = {"train.tar.gz.own.lsunpacked", "train.tar.gz.5-g.lsunpacked",
                                "train.tar.gz.lsunpacked", "old-train.tar.gz.5-6.lsunpacked"};
  for (const char* name : others) folder.write(name, Bytes(1));
  const auto unpack = [&](std::size_t bytes) {
    folder.write("train.tar.gz", gzip(Bytes(bytes, 7)));
    return unpacked_file(folder.path() / "train.tar.gz").filename().string();
  };
  const std::string earlier = unpack(1000);
  testing::internal::CaptureStderr();
  const std::string current = unpack(1'000'000);
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_NE(earlier, current);
  expect_parts(log, {earlier, "1 file"});
  for (const char* name : others) EXPECT_EQ(log.find(name), std::string::npos) << log;
  EXPECT_TRUE(std::filesystem::exists(folder.path() / earlier));
}

TEST(UnpackedFile, AFailedReadIsNotDamage) {
  const TemporaryFolder folder;
  folder.write("train.tar.gz", gzip(Bytes(1000, 7)));
  bool broken = false;
  int code = exit_code::done;
  std::string message;
  std::thread([&] {
    broken = let_call_fail(SYS_read, EIO);
    if (!broken) return;
    try {
      unpacked_file(folder.path() / "train.tar.gz");
    } catch (const Error& error) {
      code = error.exit_code();
      message = error.what();
    }
  }).join();
  if (!broken) GTEST_SKIP() << "needs seccomp filters";
  EXPECT_EQ(code, exit_code::io) << message;
  expect_parts(message, {"train.tar.gz", "Input/output error"});
}

}  // namespace
}  // namespace lockstep
