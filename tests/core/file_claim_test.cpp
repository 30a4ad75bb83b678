// SPDX-License-Identifier: Apache-2.0
#include "core/file_claim.h"

#include <csignal>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep {
namespace {

class FileClaims : public testing::Test {
 protected:
  FileClaims() { std::filesystem::create_directories(folder_); }
  ~FileClaims() override { std::filesystem::remove_all(folder_); }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / fmt::format("lockstep_file_claim_{}", getpid());
  const std::filesystem::path path_ = folder_ / "claim";
};

using State = FileClaim::State;

// A process that has the file, and waits to be killed.
pid_t other_holder(const std::filesystem::path& path) {
  int ready[2] = {};
  EXPECT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const FileClaim claim(path);
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

TEST_F(FileClaims, AreOneHoldersAtATimeAndNameIt) {
  FileClaim first(path_);
  EXPECT_EQ(first.state(), State::held);
  for (int turn = 0; turn < 2; ++turn) {
    const FileClaim second(path_);
    EXPECT_EQ(second.state(), State::taken);
    EXPECT_EQ(second.holder().find(fmt::format("process {} on ", getpid())), 0u) << second.holder();
    EXPECT_NE(second.holder().find(", since 2"), std::string::npos) << second.holder();
    EXPECT_EQ(holder_of(path_), second.holder());
  }
  first = FileClaim(folder_ / "other");
  EXPECT_EQ(holder_of(path_), std::nullopt);
  EXPECT_EQ(FileClaim(path_).state(), State::held);
}

TEST_F(FileClaims, OfAProcessThatWasKilledAreFree) {
  const pid_t child = other_holder(path_);
  EXPECT_EQ(FileClaim(path_).holder().find(fmt::format("process {} on ", child)), 0u);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(holder_of(path_), std::nullopt);
  EXPECT_EQ(FileClaim(path_).state(), State::held);
}

TEST_F(FileClaims, AreEveryUsersToLock) {
  const mode_t before = umask(077);
  const FileClaim claim(path_);
  umask(before);
  struct stat status = {};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0666u);
}

TEST_F(FileClaims, FollowTheUmaskWhereTheyAreOfAFolderOfOnes) {
  const mode_t before = umask(027);
  const FileClaim claim(path_, FileClaim::For::umask);
  umask(before);
  struct stat status = {};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

// In a folder that everybody may write to, where Linux is strict about files of others.
TEST_F(FileClaims, OfOneUserAreKnownToAnother) {
  if (getuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  ASSERT_EQ(chmod(folder_.c_str(), 01777), 0);
  const auto state_for_user = [&](uid_t user) {
    const pid_t child = fork();
    if (child == 0) _exit(setuid(user) != 0 ? 99 : static_cast<int>(FileClaim(path_).state()));
    int status = 0;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  };
  EXPECT_EQ(state_for_user(1), static_cast<int>(State::held));
  EXPECT_EQ(state_for_user(2), static_cast<int>(State::held));
  const FileClaim mine(path_);
  EXPECT_EQ(state_for_user(2), static_cast<int>(State::taken));
  ASSERT_EQ(chmod(path_.c_str(), 0444), 0);
  EXPECT_EQ(state_for_user(2), static_cast<int>(State::taken)) << "who may not write may ask";
}

TEST_F(FileClaims, AskingMakesNoFileAndKeepsNobodyFromAsking) {
  EXPECT_EQ(holder_of(path_), std::nullopt);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

// Whatever lies there: no wait, and nothing is written through a link.
TEST_F(FileClaims, OfWhatIsNoFileAreImpossible) {
  const auto expect_unopened = [](const std::filesystem::path& path) {
    const FileClaim claim(path);
    EXPECT_EQ(claim.state(), State::unopened) << path;
    EXPECT_NE(claim.problem(), "") << path;
    EXPECT_EQ(holder_of(path), std::nullopt) << path;
  };
  expect_unopened(folder_ / "no_folder" / "claim");
  expect_unopened(folder_);
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0666), 0);
  expect_unopened(folder_ / "pipe");
  std::ofstream(folder_ / "mine") << "precious";
  std::filesystem::create_symlink(folder_ / "mine", folder_ / "link");
  expect_unopened(folder_ / "link");
  EXPECT_EQ(std::filesystem::file_size(folder_ / "mine"), 8u);
}

TEST_F(FileClaims, AHolderThatWroteNonsenseIsShownAsText) {
  const FileClaim first(path_);
  std::ofstream(path_, std::ios::trunc) << "\x1b[2J\xff" << std::string(5000, 'a');
  const std::string holder = FileClaim(path_).holder();
  EXPECT_EQ(holder.find('\x1b'), std::string::npos);
  EXPECT_LT(holder.size(), 300u);
  std::ofstream(path_, std::ios::trunc).flush();
  EXPECT_EQ(holder_of(path_), "a process that has just started");
}

}  // namespace
}  // namespace lockstep
