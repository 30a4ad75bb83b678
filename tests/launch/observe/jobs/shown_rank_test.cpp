// SPDX-License-Identifier: Apache-2.0
//
// The state that a rank publishes and what readers see, also of a stopped or killed rank.
#include "launch/observe/jobs/shown_rank.h"

#include <array>
#include <csignal>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/collective_log.h"
#include "launch/observe/jobs/seen_ranks.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

RankIdentity identity_of(std::int64_t rank, const std::string& job = "one") {
  return {.rank = rank, .ranks = 2, .job = job, .run_dir = "/runs/" + job, .model = "mlp"};
}

// A process that runs `work` and waits to be killed. It runs no destructors.
class OtherProcess {
 public:
  explicit OtherProcess(const std::function<void()>& work) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    process_ = fork();
    if (process_ == 0) {
      work();
      EXPECT_EQ(write(ready[1], "!", 1), 1);
      for (;;) pause();
    }
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
  }
  ~OtherProcess() { kill_it(); }

  void stop() const {
    kill(process_, SIGSTOP);
    waitpid(process_, nullptr, WUNTRACED);
  }
  void kill_it() {
    if (process_ == 0) return;
    kill(process_, SIGKILL);
    waitpid(std::exchange(process_, 0), nullptr, 0);
  }
  pid_t process() const { return process_; }

 private:
  pid_t process_ = 0;
};

struct Numbers {
  std::array<std::uint64_t, 40> all;
};

TEST(LatestValue, IsEmptyBeforeTheFirstWrite) {
  const auto value = std::make_unique<LatestValue<Numbers>>();
  EXPECT_FALSE(value->look());
}

// A reader gets complete values only, and never one older than a value it has seen.
TEST(LatestValue, ReadersSeeOnlyCompleteValues) {
  const auto value = std::make_unique<LatestValue<Numbers>>();
  constexpr std::uint64_t kLast = 100'000;
  const auto show = [&](std::uint64_t number) {
    Numbers numbers;
    numbers.all.fill(number);
    value->show(numbers);
  };
  show(1);
  std::jthread writer([&] {
    for (std::uint64_t number = 2; number <= kLast; ++number) show(number);
  });
  for (std::uint64_t seen = 0; seen < kLast;) {
    const std::optional<Numbers> numbers = value->look();
    if (!numbers) continue;  // values changed too fast
    for (const std::uint64_t each : numbers->all) ASSERT_EQ(each, numbers->all[0]);
    ASSERT_GE(numbers->all[0], seen);
    seen = numbers->all[0];
  }
}

TEST(FixedText, KeepsTheEndOfALongText) {
  EXPECT_EQ(FixedText<8>("runs/x").str(), "runs/x");
  EXPECT_EQ(FixedText<8>("far/runs/x").str(), "/runs/x");
  EXPECT_EQ(FixedText<8>("").str(), "");
}

class ShownRanks : public testing::Test {
 protected:
  std::vector<SeenRank> seen() const { return see_ranks(folder_.path()); }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()));
  }
  TemporaryFolder folder_;
};

TEST_F(ShownRanks, ShowTheirStateAndRemoveItAtTheirEnd) {
  {
    ShownRank second(identity_of(1), folder_.path()), first(identity_of(0), folder_.path());
    first.introduce([](RankIdentity& rank) { rank.device = "cuda:3"; });
    first.enter(Activity::training);
    first.tell([](RankProgress& progress) {
      progress.step = 17;
      progress.busy = 0.75;
    });
    const std::vector<SeenRank> ranks = seen();
    ASSERT_EQ(ranks.size(), 2u);
    EXPECT_EQ(ranks[0].identity.rank, 0);
    EXPECT_EQ(ranks[0].identity.device.str(), "cuda:3");
    EXPECT_EQ(ranks[0].identity.run_dir.str(), "/runs/one");
    EXPECT_EQ(ranks[0].identity.process, getpid());
    EXPECT_EQ(ranks[0].progress.step, 17);
    EXPECT_EQ(ranks[0].progress.busy, 0.75);
    EXPECT_EQ(ranks[0].progress.activity, Activity::training);
    EXPECT_EQ(ranks[0].life, RankLife::running);
    ASSERT_TRUE(ranks[0].process);
    EXPECT_EQ(ranks[1].identity.rank, 1);
    EXPECT_EQ(ranks[1].progress.activity, Activity::starting);
    struct stat status = {};
    ASSERT_EQ(stat(first.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 077, 0u) << "only the owner may read the file";
  }
  EXPECT_EQ(files(), 0u);
}

TEST_F(ShownRanks, RestoreThePreviousActivity) {
  ShownRank shown(identity_of(0), folder_.path());
  shown.enter(Activity::training);
  {
    const ShownActivity evaluating(&shown, Activity::evaluating);
    EXPECT_EQ(seen().at(0).progress.activity, Activity::evaluating);
    const ShownActivity nobody(nullptr, Activity::saving);
  }
  EXPECT_EQ(seen().at(0).progress.activity, Activity::training);
}

TEST_F(ShownRanks, ShowStoppedAndKilledRanks) {
  std::optional<ShownRank> shown;
  OtherProcess other([&] {
    shown.emplace(identity_of(0), folder_.path());
    shown->tell([](RankProgress& progress) { progress.step = 5; });
  });
  ASSERT_EQ(seen().size(), 1u);
  EXPECT_EQ(seen()[0].life, RankLife::running);
  EXPECT_EQ(seen()[0].identity.process, other.process());
  other.stop();
  EXPECT_EQ(seen().at(0).life, RankLife::stopped);
  other.kill_it();
  EXPECT_EQ(seen().at(0).life, RankLife::died);
  EXPECT_EQ(seen()[0].progress.step, 5) << "the last step that it published";
  EXPECT_FALSE(seen()[0].process);

  remove_dead_ranks(std::chrono::hours(1), folder_.path());
  EXPECT_EQ(files(), 1u) << "a monitor may still show the dead rank";
  remove_dead_ranks(std::chrono::seconds(0), folder_.path());
  EXPECT_EQ(files(), 0u);
}

TEST_F(ShownRanks, RemainWhileTheirProcessLives) {
  const ShownRank shown(identity_of(0), folder_.path());
  remove_dead_ranks(std::chrono::seconds(0), folder_.path());
  EXPECT_EQ(seen().size(), 1u);
}

// Threads of a killed process, such as the one that frees its memory, hold the lock after the main thread has
// ended. Here a child holds it.
TEST_F(ShownRanks, DeadProcessThatHoldsItsLockCountsAsDead) {
  int held[2];
  ASSERT_EQ(pipe(held), 0);
  std::optional<ShownRank> shown;
  OtherProcess other([&] {
    close(held[1]);
    shown.emplace(identity_of(0), folder_.path());
    char byte = 0;
    if (fork() == 0) _exit(static_cast<int>(read(held[0], &byte, 1)));
  });
  kill(other.process(), SIGKILL);
  siginfo_t info = {};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(other.process()), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(seen().at(0).life, RankLife::died);
  EXPECT_FALSE(seen()[0].process);
  close(held[0]);
  close(held[1]);
}

// A later process with the same id is a different process.
TEST_F(ShownRanks, ReusedProcessIdCountsAsDead) {
  std::optional<ShownRank> shown;
  OtherProcess other([&] {
    shown.emplace(identity_of(0), folder_.path());
    shown->introduce([](RankIdentity& rank) {
      rank.process = getppid();
      rank.process_start = 1;
    });
  });
  other.kill_it();
  EXPECT_EQ(seen().at(0).life, RankLife::died);
  EXPECT_FALSE(seen()[0].process);
}

// A record of an earlier process with the same id is not the rank's, and a change of the system's clock hides
// no wait.
TEST_F(ShownRanks, ShowTheWaitsThatBeganAfterThem) {
  const auto waits = [&] { return see_ranks(folder_.path(), "", now_ns() + 5'000'000'000).at(0).waits; };
  CollectiveLog log("world", 0, 2);
  log.begin({.sequence = 1});
  log.started(1);
  ShownRank shown(identity_of(0), folder_.path());
  EXPECT_FALSE(waits());
  log.begin({.sequence = 2});
  log.started(2);
  shown.introduce([](RankIdentity& rank) { rank.since += 3600; });
  ASSERT_TRUE(waits());
  EXPECT_EQ(waits()->what, describe(Collective{.sequence = 2}));
  EXPECT_GE(waits()->seconds, 5);
}

// Any user may create a file with the name of a log. Root sees the ranks of all users, with their waits.
TEST_F(ShownRanks, ShowOnlyTheWaitsInLogsOfTheirUser) {
  const auto rank = [&] { return see_ranks(folder_.path(), "", now_ns() + 5'000'000'000).at(0); };
  ShownRank shown(identity_of(0), folder_.path());
  CollectiveLog log("world", 0, 2);
  log.begin({.sequence = 1});
  log.started(1);
  ASSERT_TRUE(rank().waits);
  EXPECT_EQ(rank().user, geteuid());
  constexpr uid_t kOther = 65534;
  if (chown(log.path().c_str(), kOther, kOther) != 0)
    GTEST_SKIP() << "this user may not give a file to another user";
  EXPECT_FALSE(rank().waits);
  ASSERT_EQ(chown(shown.path().c_str(), kOther, kOther), 0);
  EXPECT_TRUE(rank().waits);
  EXPECT_EQ(rank().user, kOther);
}

// In a full /dev/shm a mapping of the file would raise SIGBUS.
TEST_F(ShownRanks, FileWithAHoleDoesNotEndItsReader) {
  constexpr int kMayNotMount = 77;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("none", folder_.path().c_str(), "tmpfs", 0, "size=64k") != 0)
      _exit(kMayNotMount);
    const fs::path hole = folder_.path() / "lockstep-rank.0.hole.0";
    std::ofstream(hole).close();
    std::error_code error;
    fs::resize_file(hole, sizeof(RankFile), error);
    std::ofstream(folder_.path() / "filler") << std::string(std::size_t{1} << 20, 'x');
    _exit(!error && seen().empty() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kMayNotMount)
    GTEST_SKIP() << "this user may not mount a file system";
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(ShownRanks, UnrelatedFilesAreNeitherReadNorRemoved) {
  folder_.write("lockstep-rank.0.cut.0", Bytes(100, std::uint8_t{1}));
  folder_.write("lockstep-rank.0.other.0", Bytes(sizeof(RankFile), std::uint8_t{1}));
  ASSERT_EQ(mkfifo((folder_.path() / "lockstep-rank.0.pipe.0").c_str(), 0600), 0)
      << "opening this FIFO would block";
  folder_.write("another", Bytes(sizeof(RankFile), std::uint8_t{0}));
  EXPECT_TRUE(seen().empty());
  remove_dead_ranks(std::chrono::seconds(0), folder_.path());
  EXPECT_EQ(files(), 4u) << "another process may be writing them";
}

TEST_F(ShownRanks, MissingFolderOnlyCausesAWarning) {
  testing::internal::CaptureStderr();
  {
    ShownRank shown(identity_of(0), folder_.path() / "absent");
    shown.enter(Activity::training);
    shown.tell([](RankProgress& progress) { progress.step = 1; });
    EXPECT_TRUE(shown.path().empty());
  }
  expect_parts(testing::internal::GetCapturedStderr(),
               {"lockstep monitor", (folder_.path() / "absent").string()});
}

}  // namespace
}  // namespace lockstep
