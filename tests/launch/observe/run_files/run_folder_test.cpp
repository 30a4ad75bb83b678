// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/run_files/run_folder.h"

#include <fstream>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/files/file_text.h"
#include "launch/observe/account/busy_watch.h"
#include "launch/observe/run_files/run_record.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

class RunFolder : public testing::Test {
 protected:
  void write(const std::string& metrics) const {
    begin_metrics(folder_);
    std::ofstream(folder_ / "metrics.jsonl") << metrics;
  }
  std::string text_of(const std::string& name) const { return file_text(folder_ / name); }

  TemporaryFolder temporary_{"run_folder"};
  std::filesystem::path folder_ = temporary_.path() / "made" / "run";
};

TEST_F(RunFolder, ServesOneJobAtATime) {
  std::optional<RunLock> first(folder_);
  for (int turn = 0; turn < 2; ++turn) {
    const std::string message = message_of<ConfigError>([&] { RunLock second(folder_); });
    expect_parts(message, {folder_.string(), fmt::format("process {}", getpid()), "run.dir"});
    EXPECT_TRUE(std::regex_search(message, std::regex(R"(\b20\d\d-\d\d-\d\d \d\d:\d\d)"))) << message;
  }
  // With a wait, the error says that the same command can be started again.
  try {
    const RunLock late(folder_, std::chrono::milliseconds(60));
    ADD_FAILURE() << "another job uses the folder";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), exit_code::resumable);
  }
  const RunLock elsewhere(folder_ / "other");
  first.reset();
  const RunLock later(folder_);
}

// Their names end with a random number (core/files/atomic_file.h).
TEST_F(RunFolder, UnfinishedFilesOfAKilledJobAreRemoved) {
  std::optional<RunLock> lock(folder_);
  const auto path_of = [&](const std::string& name) {
    return folder_ / fmt::format("{}{}0123456789abcdef", name, kPartialMark);
  };
  const std::vector<std::string> ours = {kBestFile, kLastGoodFile, "steps.jsonl", "config.toml", "run.json"},
                                 others = {"report.html", ""};
  for (const auto& names : {ours, others})
    for (const std::string& name : names) std::ofstream(path_of(name)) << "cut";
  std::ofstream(folder_ / kBestFile) << "weights";
  EXPECT_THROW(RunLock second(folder_), ConfigError);
  for (const std::string& name : ours) EXPECT_TRUE(std::filesystem::exists(path_of(name))) << "it is in use";
  lock.reset();
  lock.emplace(folder_);
  for (const std::string& name : ours) EXPECT_FALSE(std::filesystem::exists(path_of(name))) << name;
  for (const std::string& name : others) EXPECT_TRUE(std::filesystem::exists(path_of(name))) << name;
  EXPECT_EQ(text_of(kBestFile), "weights");
}

TEST_F(RunFolder, EarlierMetricsAreKept) {
  for (const char* run : {"one", "two", "three"}) write(run);
  EXPECT_EQ(text_of("metrics.jsonl"), "three");
  EXPECT_EQ(text_of("metrics.1.jsonl"), "one");
  EXPECT_EQ(text_of("metrics.2.jsonl"), "two");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "metrics.3.jsonl"));
}

TEST_F(RunFolder, NewRunMovesSavedNetworksAsideAndAResumedOneKeepsThem) {
  begin_metrics(folder_);
  for (const char* name : {kBestFile, kLastGoodFile}) std::ofstream(folder_ / name) << name;
  continue_metrics(folder_, 0, false);
  for (const char* name : {kBestFile, kLastGoodFile}) EXPECT_EQ(text_of(name), name);
  begin_metrics(folder_);
  for (const char* name : {kBestFile, kLastGoodFile})
    EXPECT_FALSE(std::filesystem::exists(folder_ / name)) << name;
  EXPECT_EQ(text_of("best.1.safetensors"), kBestFile);
  EXPECT_EQ(text_of("last_good.1.safetensors"), kLastGoodFile);
}

TEST_F(RunFolder, ResumedRunWithoutItsLinesKeepsItsNetworks) {
  begin_metrics(folder_);
  for (const char* name : {kBestFile, kLastGoodFile}) std::ofstream(folder_ / name) << name;
  std::filesystem::remove(folder_ / "metrics.jsonl");
  continue_metrics(folder_, 3, false);
  for (const char* name : {kBestFile, kLastGoodFile}) EXPECT_EQ(text_of(name), name);
  EXPECT_EQ(text_of("metrics.jsonl"), "");
  EXPECT_TRUE(std::filesystem::exists(folder_ / "metrics.jsonl"));
}

TEST_F(RunFolder, ResumedRunKeepsTheLinesOfSavedEpochs) {
  const std::string one = "{\"epoch\":1,\"steps\":5}\n", two = "{\"epoch\":2,\"steps\":10}\n",
                    three = "{\"epoch\":3,\"steps\":12}\n";
  write(one + two);
  continue_metrics(folder_, 2, false);
  EXPECT_EQ(text_of("metrics.jsonl"), one + two);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "metrics.1.jsonl")) << "no line was removed";
  // An epoch that is trained again, and an incomplete line.
  std::ofstream(folder_ / "metrics.jsonl") << one + two + three + "{\"epoch\":4,";
  continue_metrics(folder_, 2, true);
  EXPECT_EQ(text_of("metrics.jsonl"), one + two + three);
  continue_metrics(folder_, 1, false);
  EXPECT_EQ(text_of("metrics.jsonl"), one);
  EXPECT_EQ(text_of("metrics.1.jsonl"), one + two + three + "{\"epoch\":4,");
  EXPECT_EQ(text_of("metrics.2.jsonl"), one + two + three);
}

// A run that was resumed in a new folder, or whose disk was full for an epoch.
TEST_F(RunFolder, ResumedRunKeepsLinesAfterAGap) {
  const std::string two = "{\"epoch\":2,\"steps\":10}\n", four = "{\"epoch\":4,\"steps\":20}\n",
                    five = "{\"epoch\":5,\"steps\":25}\n";
  write(two + four + five);
  continue_metrics(folder_, 4, false);
  EXPECT_EQ(text_of("metrics.jsonl"), two + four);
}

TEST_F(RunFolder, ResumedRunKeepsTheLinesOfSavedSteps) {
  const std::string five = "{\"epoch\":1,\"step\":5,\"steps\":5}\n", ten = "{\"epoch\":2,\"step\":10}\n",
                    twelve = "{\"epoch\":2,\"step\":12}\n";
  write("");
  const auto leave = [&](const std::string& text) { std::ofstream(folder_ / "steps.jsonl") << text; };
  leave(five + ten + twelve + "{\"epoch\":2,\"st");
  continue_steps(folder_, 11);
  EXPECT_EQ(text_of("steps.jsonl"), five + ten);
  EXPECT_EQ(text_of("steps.1.jsonl"), five + ten + twelve + "{\"epoch\":2,\"st");
  leave(five + ten + ten + five + twelve);
  continue_steps(folder_, 12);
  EXPECT_EQ(text_of("steps.jsonl"), five + ten + twelve) << "each step once";
  continue_steps(folder_, 12);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "steps.3.jsonl")) << "no line was removed";
  begin_metrics(folder_);
  EXPECT_EQ(text_of("steps.jsonl"), "");
  EXPECT_EQ(text_of("steps.3.jsonl"), five + ten + twelve);
}

TEST_F(RunFolder, ResumedRunKeepsTheEventsOfSavedSteps) {
  const auto event_of = [](std::int64_t step) {
    IdleEvent event{.lines = {.step = step}, .first_step = step - 4};
    event.cause.change = "data.loader=preload";
    return to_json(event, 1.5) + '\n';
  };
  write("");
  std::ofstream(folder_ / "events.jsonl") << event_of(5) << event_of(10) << event_of(15);
  continue_steps(folder_, 10);
  EXPECT_EQ(text_of("events.jsonl"), event_of(5) + event_of(10));
  EXPECT_EQ(text_of("events.1.jsonl"), event_of(5) + event_of(10) + event_of(15));
}

// A checkpoint precedes the evaluation of its step, so a resumed run repeats it.
TEST_F(RunFolder, ResumedRunKeepsTheEvaluationsBeforeItsStep) {
  const std::string five = "{\"epoch\":1,\"step\":5}\n", ten = "{\"epoch\":1,\"step\":10}\n";
  write("");
  std::ofstream(folder_ / "evaluations.jsonl") << five + ten;
  continue_steps(folder_, 10);
  EXPECT_EQ(text_of("evaluations.jsonl"), five);
  EXPECT_EQ(text_of("evaluations.1.jsonl"), five + ten);
  begin_metrics(folder_);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "evaluations.jsonl"));
  EXPECT_EQ(text_of("evaluations.2.jsonl"), five);
}

TEST_F(RunFolder, RunWithoutMetricsLeavesNoFile) {
  begin_metrics(folder_);
  write("second");
  EXPECT_EQ(text_of("metrics.jsonl"), "second");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "metrics.1.jsonl"));
}

TEST_F(RunFolder, UnwritablePathIsNamed) {
  const std::filesystem::path nowhere = "/proc/nowhere";
  EXPECT_NE(message_of<IoError>([&] { RunLock lock(nowhere); }).find("/proc/nowhere"), std::string::npos);
  EXPECT_NE(message_of<IoError>([&] { begin_metrics(nowhere); }).find("/proc/nowhere"), std::string::npos);
}

// An unpacked folder may contain links to any place.
TEST_F(RunFolder, ExistingLinksAreNotFollowed) {
  const std::filesystem::path elsewhere = folder_.parent_path() / "elsewhere";
  const auto link_all = [&](const std::filesystem::path& to) {
    for (const char* name : {"metrics.jsonl", "steps.jsonl"}) {
      std::filesystem::remove(folder_ / name);
      std::filesystem::create_symlink(to, folder_ / name);
    }
  };
  std::filesystem::create_directories(folder_);
  link_all(elsewhere);
  begin_metrics(folder_);
  EXPECT_FALSE(std::filesystem::exists(elsewhere));
  EXPECT_EQ(append_whole(folder_ / "metrics.jsonl", "line\n"), 0);
  EXPECT_EQ(text_of("metrics.jsonl"), "line\n");

  const std::string two_lines = "{\"epoch\":1,\"steps\":5}\n{\"epoch\":2,\"steps\":10}\n";
  std::ofstream(elsewhere) << two_lines;
  link_all(elsewhere);
  EXPECT_NE(append_whole(folder_ / "metrics.jsonl", "line\n"), 0);
  EXPECT_THROW(continue_metrics(folder_, 1, false), DataError);
  EXPECT_THROW(continue_steps(folder_, 1), DataError);
  begin_metrics(folder_);
  EXPECT_EQ(text_of("metrics.jsonl"), "");
  EXPECT_EQ(text_of("../elsewhere"), two_lines);
}

TEST_F(RunFolder, RecordWithManyLevelsIsKept) {
  const std::string deep = "{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  std::filesystem::create_directories(folder_);
  std::ofstream(folder_ / "run.json") << deep;
  write_run_record(folder_, "", "{}");
  EXPECT_EQ(text_of("run.json"), "{}");
  EXPECT_EQ(text_of("run.1.json"), deep);
}

TEST_F(RunFolder, LockFollowsTheUmask) {
  const mode_t before = umask(077);
  const RunLock lock(folder_);
  umask(before);
  struct stat status = {};
  ASSERT_EQ(stat((folder_ / "run.lock").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}
}  // namespace
}  // namespace lockstep
