// SPDX-License-Identifier: Apache-2.0
#include "comm/job/node_claims.h"

#include <cstdlib>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

class NodeClaimsTest : public testing::Test {
 protected:
  // The holder of the name as another process sees it, or "".
  std::string claimed_elsewhere(const std::string& name) const {
    int answer[2] = {};
    EXPECT_EQ(pipe(answer), 0);
    const pid_t child = fork();
    if (child == 0) {
      NodeClaims claims(folder_);
      const std::string holder = claims.claim(name).value_or("");
      _exit(write(answer[1], holder.data(), holder.size()) < 0);
    }
    close(answer[1]);
    std::string holder(300, '\0');
    const ssize_t got = read(answer[0], holder.data(), holder.size());
    close(answer[0]);
    waitpid(child, nullptr, 0);
    return holder.substr(0, static_cast<std::size_t>(got < 0 ? 0 : got));
  }

  const TemporaryFolder temporary_{"node_claims"};
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(NodeClaimsTest, BelongToThisProcessUntilItReleasesThem) {
  NodeClaims claims(folder_);
  const std::string me = fmt::format("process {} on ", getpid());
  for (const char* name : {"gpu.a", "gpu.b", "gpu.a"}) EXPECT_EQ(claims.claim(name), std::nullopt) << name;
  EXPECT_EQ(claimed_elsewhere("gpu.a").find(me), 0u);
  EXPECT_EQ(claimed_elsewhere("gpu.c"), "");
  EXPECT_TRUE(claims.is_mine("gpu.b"));
  EXPECT_EQ(claims.other_holder("gpu.b"), std::nullopt);
  claims.keep_only("gpu.a");
  EXPECT_FALSE(claims.is_mine("gpu.b"));
  EXPECT_EQ(claimed_elsewhere("gpu.b"), "");
  EXPECT_EQ(claimed_elsewhere("gpu.a").find(me), 0u);
}

TEST_F(NodeClaimsTest, NameTheOtherHolder) {
  NodeClaims claims(folder_);
  NodeClaims others(folder_);  // of this process, whose claims the file does not show
  EXPECT_EQ(others.claim("gpu.a"), std::nullopt);
  const std::optional<std::string> holder = claims.other_holder("gpu.a");
  ASSERT_TRUE(holder.has_value());
  EXPECT_EQ(claims.claim("gpu.a"), holder);
  EXPECT_FALSE(claims.is_mine("gpu.a"));
}

// Containers without a common folder, or a file of another kind with the claim's name.
TEST_F(NodeClaimsTest, NamesThatCannotBeLockedAreFreeForAll) {
  NodeClaims nowhere(folder_ / "none");
  EXPECT_EQ(nowhere.claim("gpu.a"), std::nullopt);
  EXPECT_TRUE(nowhere.is_mine("gpu.a"));
  ASSERT_EQ(mkfifo((folder_ / fmt::format("lockstep-gpu.a.{}", geteuid())).c_str(), 0666), 0);
  NodeClaims claims(folder_);
  EXPECT_EQ(claims.other_holder("gpu.a"), std::nullopt);
  EXPECT_EQ(claims.claim("gpu.a"), std::nullopt);
  EXPECT_EQ(claimed_elsewhere("gpu.a"), "");
}

// A claim of another user counts and names that user. A forged file does not.
TEST_F(NodeClaimsTest, ClaimsOfOtherUsersNameTheUser) {
  if (getuid() != 0) GTEST_SKIP() << "needs root to act as two users";
  ASSERT_EQ(chmod(folder_.c_str(), 01777), 0);
  int ready[2] = {}, over[2] = {};
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(over), 0);
  const pid_t other = fork();
  if (other == 0) {
    close(over[1]);
    if (setuid(3) != 0) _exit(1);
    NodeClaims claims(folder_);
    const FileClaim forged(folder_ / "lockstep-gpu.b.4", FileClaim::By::owner);
    char end = claims.claim("gpu.a") ? 'n' : 'y';
    if (write(ready[1], &end, 1) != 1) _exit(1);
    _exit(read(over[0], &end, 1) < 0);
  }
  char claimed = 0;
  ASSERT_EQ(read(ready[0], &claimed, 1), 1);
  EXPECT_EQ(claimed, 'y');
  NodeClaims mine(folder_);
  const std::string holder = mine.claim("gpu.a").value_or("");
  EXPECT_EQ(holder.find(fmt::format("process {} on ", other)), 0u) << holder;
  EXPECT_TRUE(holder.ends_with(" (user 3)")) << holder;
  EXPECT_EQ(mine.other_holder("gpu.a"), holder);
  EXPECT_EQ(mine.claim("gpu.b"), std::nullopt);
  for (const int end : {ready[0], ready[1], over[0], over[1]}) close(end);
  waitpid(other, nullptr, 0);
  EXPECT_EQ(mine.claim("gpu.a"), std::nullopt);
}

TEST(ClaimsFolder, IsLockstepClaimsOrSharedMemory) {
  const char* told = std::getenv("LOCKSTEP_CLAIMS");
  const std::string before = told != nullptr ? told : "";
  setenv("LOCKSTEP_CLAIMS", "/somewhere", 1);
  EXPECT_EQ(claims_folder(), "/somewhere");
  setenv("LOCKSTEP_CLAIMS", "", 1);
  EXPECT_EQ(claims_folder(), "/dev/shm");
  unsetenv("LOCKSTEP_CLAIMS");
  EXPECT_EQ(claims_folder(), "/dev/shm");
  if (told != nullptr) setenv("LOCKSTEP_CLAIMS", before.c_str(), 1);
}

}  // namespace
}  // namespace lockstep
