// SPDX-License-Identifier: Apache-2.0
#include "core/files/atomic_file.h"

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <string>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/error.h"
#include "core/files/file_text.h"
#include "tests/core/file_size_limit.h"
#include "tests/failing_call.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class AtomicFileTest : public testing::Test {
 protected:
  std::ptrdiff_t files() const { return std::distance(fs::directory_iterator(folder_), {}); }
  // Expects an IoError with the path, which is not the temporary file's, and the system's reason.
  template <typename Work>
  static void expect_io_error(const fs::path& path, const std::string& reason, Work&& work) {
    const std::string message = message_of<IoError>(work);
    expect_parts(message, {path.string(), reason});
    EXPECT_EQ(message.find(kPartialMark), std::string::npos) << message;
  }

  TemporaryFolder temporary_{"atomic_file"};
  fs::path folder_ = temporary_.path();
  fs::path path_ = folder_ / "file";
};

TEST_F(AtomicFileTest, AppearsOnlyAfterCommit) {
  for (const Durable durable : {Durable::yes, Durable::no}) {
    write_atomically(path_, "old");
    AtomicFile file(path_, Links::follow, durable);
    file.write("new ");
    file.write("and longer");
    EXPECT_EQ(file_text(path_), "old");
    file.commit();
    EXPECT_EQ(file_text(path_), "new and longer");
    EXPECT_EQ(files(), 1);
  }
}

TEST_F(AtomicFileTest, WithoutCommitNoFileRemains) {
  for (const Durable durable : {Durable::yes, Durable::no})
    AtomicFile(path_, Links::follow, durable).write("half");
  EXPECT_EQ(files(), 0);
}

TEST_F(AtomicFileTest, AKilledProcessLeavesNoFile) {
  const int unnamed = open(folder_.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (unnamed < 0) GTEST_SKIP() << "needs a file system with O_TMPFILE";
  close(unnamed);
  const auto write_until_killed = [&] {
    AtomicFile file(path_);
    file.write("half");
    std::raise(SIGKILL);
  };
  EXPECT_EXIT(write_until_killed(), testing::KilledBySignal(SIGKILL), "");
  EXPECT_EQ(files(), 0);
}

// The system cannot name such a file where /proc is not mounted.
TEST_F(AtomicFileTest, WritesWhereAnUnnamedFileCannotBeNamed) {
  const std::string text(10'000, 'x');
  bool broken = false;
  std::string message;
  std::thread([&] {
    broken = let_call_fail(SYS_linkat, ENOENT);
    if (broken) message = message_of<IoError>([&] { write_atomically(path_, text); });
  }).join();
  if (!broken) GTEST_SKIP() << "needs seccomp filters";
  EXPECT_EQ(message, "");
  EXPECT_EQ(file_text(path_), text);
  EXPECT_EQ(files(), 1);
}

// The second writer replaces the first one's file as a whole and never writes into it.
TEST_F(AtomicFileTest, TwoWritersDoNotDisturbEachOther) {
  AtomicFile first(path_);
  AtomicFile second(path_);
  second.write("22");
  first.write("1");
  second.commit();
  EXPECT_EQ(file_text(path_), "22");
  first.commit();
  EXPECT_EQ(file_text(path_), "1");
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFileTest, KeepsTheOldFileWhenTheDiskIsFull) {
  write_atomically(path_, "old");
  {
    const FileSizeLimit limit(4096);
    expect_io_error(path_, "File too large", [&] { write_atomically(path_, std::string(10'000, 'x')); });
  }
  EXPECT_EQ(file_text(path_), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFileTest, KeepsTheOldFileWhenNoTemporaryFileCanBeCreated) {
  write_atomically(path_, "old");
  rlimit before = {};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  expect_io_error(path_, "Too many open files", [&] { write_atomically(path_, "new"); });
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(file_text(path_), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFileTest, ErrorsNameThePathAndTheReason) {
  const fs::path nowhere = folder_ / "no" / "file";
  expect_io_error(nowhere, "No such file or directory", [&] { AtomicFile file(nowhere); });
  expect_io_error(folder_, "Is a directory", [&] { AtomicFile file(folder_); });
  expect_io_error("", "Invalid argument", [] { AtomicFile file(""); });
  fs::create_symlink("file", path_);  // a loop
  expect_io_error(path_, "Too many levels of symbolic links", [&] { AtomicFile file(path_); });
}

TEST_F(AtomicFileTest, WritesEveryNameThatTheFileSystemTakes) {
  const auto most = static_cast<std::size_t>(pathconf(folder_.c_str(), _PC_NAME_MAX));
  for (const std::size_t length : {std::size_t{100}, std::size_t{101}, most}) {
    const fs::path path = folder_ / std::string(length, 'n');
    for (const char* text : {"old", "new"}) write_atomically(path, text);
    EXPECT_EQ(file_text(path), "new") << length;
  }
  EXPECT_EQ(files(), 3);
  const fs::path longer = folder_ / std::string(most + 1, 'n');
  expect_io_error(longer, "File name too long", [&] { AtomicFile file(longer); });
}

TEST_F(AtomicFileTest, AFailedRenameRemovesTheTemporaryFile) {
  for (const Durable durable : {Durable::yes, Durable::no}) {
    fs::remove(path_);
    AtomicFile file(path_, Links::follow, durable);
    fs::create_directory(path_);  // in place of the file
    expect_io_error(path_, "Is a directory", [&] { file.commit(); });
  }
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFileTest, FollowsASymbolicLink) {
  const fs::path link = folder_ / "link";
  write_atomically(path_, "old");
  fs::create_symlink("file", link);
  write_atomically(link, "new");
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(file_text(path_), "new");
  EXPECT_EQ(files(), 2);
}

TEST_F(AtomicFileTest, FollowsSymbolicLinksToAFileThatDoesNotExistYet) {
  const fs::path link = folder_ / "link", second = folder_ / "second";
  fs::create_symlink("second", link);
  fs::create_symlink(path_, second);
  write_atomically(link, "new");
  EXPECT_TRUE(fs::is_symlink(link) && fs::is_symlink(second));
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(path_)));
  EXPECT_EQ(file_text(path_), "new");
  EXPECT_EQ(files(), 3);
}

// Writes directly: a temporary file must not replace /dev/stdout.
TEST_F(AtomicFileTest, WritesIntoAPipe) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] { read = file_text(path_); });
  write_atomically(path_, "through");
  reader.join();
  EXPECT_EQ(read, "through");
  EXPECT_TRUE(fs::is_fifo(path_));
  EXPECT_EQ(files(), 1);
}

TEST_F(AtomicFileTest, WritesIntoAPipeThatHasNoPath) {
  int ends[2] = {};
  ASSERT_EQ(pipe(ends), 0);
  write_atomically("/proc/self/fd/" + std::to_string(ends[1]), "through");  // as /dev/stdout may be
  std::string read_text(7, ' ');
  EXPECT_EQ(read(ends[0], read_text.data(), read_text.size()), 7);
  EXPECT_EQ(read_text, "through");
  for (const int end : ends) close(end);
}

TEST_F(AtomicFileTest, HasTheModeOfAnyNewFile) {
  for (const Durable durable : {Durable::yes, Durable::no}) {
    const mode_t before = umask(027);
    write_atomically(path_, "", Links::follow, durable);
    umask(before);
    EXPECT_EQ(fs::status(path_).permissions(), fs::perms(0640));
  }
}

TEST_F(AtomicFileTest, ReplacesASymbolicLinkOnRequest) {
  write_atomically(folder_ / "precious", "old");
  for (const fs::path& to : {folder_ / "precious", folder_ / "nowhere"}) {
    fs::remove(path_);
    fs::create_symlink(to, path_);
    write_atomically(path_, "new", Links::replace);
    EXPECT_FALSE(fs::is_symlink(path_));
    EXPECT_EQ(file_text(path_), "new");
  }
  EXPECT_EQ(file_text(folder_ / "precious"), "old");
  EXPECT_FALSE(fs::exists(folder_ / "nowhere"));
}

TEST_F(AtomicFileTest, FollowsNoLinkOfAnotherUserInAWorldWritableFolder) {
  if (getuid() != 0) GTEST_SKIP() << "needs root to create files of another user";
  const fs::path shared = folder_ / "shared", mine = folder_ / "mine";
  fs::create_directories(shared);
  fs::create_directories(mine);
  write_atomically(mine / "precious", "old");
  ASSERT_EQ(chmod(shared.c_str(), 01777), 0);
  fs::create_symlink(mine / "precious", shared / "file");
  fs::create_symlink(mine, shared / "folder");
  fs::create_symlink(shared / "file", mine / "link");
  write_atomically(shared / "file", "by my own link");
  EXPECT_EQ(file_text(mine / "precious"), "by my own link");
  for (const char* link : {"file", "folder"}) ASSERT_EQ(lchown((shared / link).c_str(), 1, 1), 0);
  for (const fs::path& path : {shared / "file", shared / "folder/precious", mine / "link"})
    expect_io_error(path, "symbolic link", [&] { write_atomically(path, "stolen"); });
  EXPECT_EQ(file_text(mine / "precious"), "by my own link");
  ASSERT_EQ(chmod(shared.c_str(), 0777), 0);
  write_atomically(shared / "file", "without the sticky bit any link is followed");
}

}  // namespace
}  // namespace lockstep
