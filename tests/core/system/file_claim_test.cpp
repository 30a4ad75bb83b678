// SPDX-License-Identifier: Apache-2.0
#include "core/system/file_claim.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <regex>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

class FileClaims : public testing::Test {
 protected:
  const TemporaryFolder temporary_{"file_claim"};
  const std::filesystem::path folder_ = temporary_.path();
  const std::filesystem::path path_ = folder_ / "claim";
};

using State = FileClaim::State;
using By = FileClaim::By;

std::optional<std::string> my_holder_of(const std::filesystem::path& path) {
  return holder_of(path, geteuid());
}

bool names_process(const std::string& holder, pid_t process) {
  return std::regex_search(holder, std::regex(fmt::format("\\bprocess {}\\b", process)));
}

// Starts a process that holds the file and waits to be killed.
pid_t other_holder(const std::filesystem::path& path, By who) {
  int ready[2] = {};
  EXPECT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const FileClaim claim(path, who);
    const char state = claim.state() == State::held ? 'h' : 'x';
    if (write(ready[1], &state, 1) != 1) _exit(1);
    for (;;) pause();
  }
  char state = 0;
  EXPECT_EQ(read(ready[0], &state, 1), 1);
  EXPECT_EQ(state, 'h');
  close(ready[0]);
  close(ready[1]);
  return child;
}

class EitherFileClaims : public FileClaims, public testing::WithParamInterface<By> {};

INSTANTIATE_TEST_SUITE_P(By, EitherFileClaims, testing::Values(By::readers, By::owner));

TEST_P(EitherFileClaims, HaveOneHolderAtATimeAndNameIt) {
  FileClaim first(path_, GetParam());
  EXPECT_EQ(first.state(), State::held);
  for (int turn = 0; turn < 2; ++turn) {
    const FileClaim second(path_, GetParam());
    EXPECT_EQ(second.state(), State::taken);
    EXPECT_TRUE(names_process(second.holder(), getpid())) << second.holder();
    EXPECT_TRUE(std::regex_search(second.holder(), std::regex("2\\d{3}-\\d\\d-\\d\\d \\d\\d:\\d\\d")))
        << second.holder();
    if (GetParam() == By::owner) {
      EXPECT_EQ(my_holder_of(path_), second.holder());
    }
  }
  first = FileClaim(folder_ / "other", GetParam());
  EXPECT_EQ(my_holder_of(path_), std::nullopt);
  EXPECT_EQ(FileClaim(path_, GetParam()).state(), State::held);
}

TEST_P(EitherFileClaims, AKilledProcessReleasesItsClaim) {
  const pid_t child = other_holder(path_, GetParam());
  EXPECT_TRUE(names_process(FileClaim(path_, GetParam()).holder(), child));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(my_holder_of(path_), std::nullopt);
  EXPECT_EQ(FileClaim(path_, GetParam()).state(), State::held);
}

TEST_P(EitherFileClaims, OwnersFilesAreReadableByAllAndReadersFilesFollowTheUmask) {
  const mode_t before = umask(027);
  const FileClaim claim(path_, GetParam());
  umask(before);
  struct stat status = {};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, GetParam() == By::owner ? 0644u : 0640u);
}

// For any file type: no waiting, and no writing through a link.
TEST_P(EitherFileClaims, OnlyRegularFilesCanBeClaimed) {
  const auto expect_unopened = [](const std::filesystem::path& path, const std::string& problem) {
    const FileClaim claim(path, GetParam());
    EXPECT_EQ(claim.state(), State::unopened) << path;
    EXPECT_EQ(claim.problem(), problem) << path;
    EXPECT_EQ(my_holder_of(path), std::nullopt) << path;
  };
  expect_unopened(folder_ / "no_folder" / "claim", std::strerror(ENOENT));
  expect_unopened(folder_, std::strerror(EISDIR));
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0666), 0);
  expect_unopened(folder_ / "pipe", "it is not a regular file");
  std::ofstream(folder_ / "mine") << "precious";
  std::filesystem::create_symlink(folder_ / "mine", folder_ / "link");
  expect_unopened(folder_ / "link", std::strerror(ELOOP));
  EXPECT_EQ(std::filesystem::file_size(folder_ / "mine"), 8u);
}

TEST_P(EitherFileClaims, AnInvalidHolderIsShownAsText) {
  const FileClaim first(path_, GetParam());
  std::ofstream(path_, std::ios::trunc) << "\x1b[2J\xff" << std::string(5000, 'a');
  const std::string holder = FileClaim(path_, GetParam()).holder();
  EXPECT_EQ(holder.find('\x1b'), std::string::npos);
  EXPECT_LT(holder.size(), 300u);
  std::ofstream(path_, std::ios::trunc).flush();
  const FileClaim second(path_, GetParam());
  EXPECT_EQ(second.state(), State::taken) << "the holder has not written its name yet";
  EXPECT_NE(second.holder(), "");
}

// In a world-writable folder, where Linux restricts access to other users' files.
class FileClaimsOfUsers : public FileClaims {
 protected:
  void SetUp() override {
    if (getuid() != 0) GTEST_SKIP() << "needs root to act as two users";
    ASSERT_EQ(chmod(folder_.c_str(), 01777), 0);
  }
  // Runs `work` as that user and returns its result.
  static int as_user(uid_t user, const std::function<int()>& work) {
    const pid_t child = fork();
    if (child == 0) _exit(setuid(user) != 0 ? 99 : work());
    int status = 0;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  }
  int state_for(uid_t user, By who) const {
    return as_user(user, [&] { return static_cast<int>(FileClaim(path_, who).state()); });
  }
};

TEST_F(FileClaimsOfUsers, ReadersOfOtherUsersSeeAClaim) {
  const FileClaim mine(path_, By::readers);
  ASSERT_EQ(chmod(path_.c_str(), 0644), 0);  // whatever the umask
  EXPECT_EQ(state_for(2, By::readers), static_cast<int>(State::taken))
      << "a user without write permission can see the claim";
}

TEST_F(FileClaimsOfUsers, OnlyTheOwnerCanClaimItsFile) {
  EXPECT_EQ(state_for(1, By::owner), static_cast<int>(State::held));
  EXPECT_EQ(state_for(2, By::owner), static_cast<int>(State::unopened)) << "the file belongs to another user";
  EXPECT_EQ(my_holder_of(path_), std::nullopt);
}

// Holds each lock that a reader of the file can get.
TEST_F(FileClaimsOfUsers, LocksOfAReaderDoNotBlockTheOwner) {
  EXPECT_EQ(FileClaim(path_, By::owner).state(), State::held) << "the first claim creates the file";
  int ready[2] = {};
  ASSERT_EQ(pipe(ready), 0);
  const pid_t stranger = fork();
  if (stranger == 0) {
    if (setuid(2) != 0) _exit(1);
    const int descriptor = open(path_.c_str(), O_RDONLY);
    struct flock lock = {};
    lock.l_type = F_RDLCK;
    const bool locked = flock(descriptor, LOCK_EX) == 0 && fcntl(descriptor, F_OFD_SETLK, &lock) == 0;
    if (write(ready[1], locked ? "y" : "n", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char locked = 0;
  ASSERT_EQ(read(ready[0], &locked, 1), 1);
  EXPECT_EQ(locked, 'y');
  EXPECT_EQ(my_holder_of(path_), std::nullopt);
  {
    const FileClaim mine(path_, By::owner);
    EXPECT_EQ(mine.state(), State::held);
    EXPECT_EQ(FileClaim(path_, By::owner).state(), State::taken);
    const int known = as_user(2, [&] { return holder_of(path_, 0).has_value() ? 7 : 8; });
    EXPECT_EQ(known, 7);
  }
  kill(stranger, SIGKILL);
  waitpid(stranger, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}

// The owner can neither lock the file nor replace it, and no process has claimed it.
TEST_F(FileClaimsOfUsers, ReadLockOnAFileThatCannotBeReplacedIsNoClaim) {
  EXPECT_EQ(state_for(1, By::owner), static_cast<int>(State::held)) << "the first claim creates the file";
  ASSERT_EQ(chmod(folder_.c_str(), 0755), 0);
  const int descriptor = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  struct flock lock = {};
  lock.l_type = F_RDLCK;
  ASSERT_EQ(fcntl(descriptor, F_OFD_SETLK, &lock), 0);
  EXPECT_EQ(state_for(1, By::owner), static_cast<int>(State::unlockable));
  close(descriptor);
  EXPECT_EQ(state_for(1, By::owner), static_cast<int>(State::held));
}

TEST_F(FileClaims, AskingForTheHolderCreatesNoFile) {
  EXPECT_EQ(my_holder_of(path_), std::nullopt);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(FileClaims, ALockedFileIsCreatedOnceForItsOwner) {
  const int made = create_locked_file(path_, 5000, LOCK_EX);
  ASSERT_GE(made, 0);
  struct stat status = {};
  ASSERT_EQ(fstat(made, &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(status.st_size, 5000);
  const int other = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  EXPECT_NE(flock(other, LOCK_SH | LOCK_NB), 0) << "it is locked";
  EXPECT_EQ(create_locked_file(path_, 5000, LOCK_EX), -1);
  EXPECT_EQ(errno, EEXIST);
  close(made);
  EXPECT_EQ(flock(other, LOCK_SH | LOCK_NB), 0);
  close(other);
}

TEST_F(FileClaims, ALockedFileWithoutRoomIsRemoved) {
  constexpr std::size_t kImpossible = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(create_locked_file(path_, kImpossible, LOCK_SH), -1);
  EXPECT_NE(errno, 0);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace lockstep
