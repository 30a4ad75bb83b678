// SPDX-License-Identifier: Apache-2.0
#include "launch/program/devices/kernel_cache.h"

#include <fstream>
#include <map>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

class KernelCacheTest : public testing::Test {
 protected:
  struct Start {
    bool timed = false;
    std::string chosen;
  };
  // A start of the program that needs one kernel. `meanwhile` runs while it times candidates.
  Start start(
      const std::string& identity, const std::string& key,
      const KernelChoice& fastest = {.candidate = "winograd", .microseconds = 1},
      const std::function<void()>& meanwhile = [] {}) {
    KernelChoices choices(ChooseBy::time);
    Start result;
    KernelCache(folder_, identity).use(choices, [&] {
      const std::vector<std::string> names = {"direct", "winograd"};
      const auto best = choices.choose(key, {.names = names, .contest = [&] {
                                               result.timed = true;
                                               meanwhile();
                                               return fastest;
                                             }});
      result.chosen = names[best.value()];
    });
    return result;
  }
  // All files except the cache and its lock.
  std::vector<std::string> left_over() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      const std::string name = entry.path().filename();
      if (name != "lock" && !name.ends_with(".json")) names.push_back(name);
    }
    return names;
  }

  TemporaryFolder temporary_{"kernel_cache"};
  std::filesystem::path folder_ = temporary_.path() / "made";
};

TEST_F(KernelCacheTest, SecondStartTimesNothing) {
  EXPECT_TRUE(start("library 1 on a processor", "3x3").timed);
  const Start second = start("library 1 on a processor", "3x3");
  EXPECT_FALSE(second.timed);
  EXPECT_EQ(second.chosen, "winograd");
  EXPECT_TRUE(start("library 1 on a processor", "5x5").timed) << "another shape";
  EXPECT_FALSE(start("library 1 on a processor", "3x3").timed) << "the first shape was forgotten";
}

TEST_F(KernelCacheTest, AnotherLibraryOrProcessorTimesAgain) {
  EXPECT_TRUE(start("library 1 on a processor", "3x3").timed);
  EXPECT_TRUE(start("library 2 on a processor", "3x3").timed);
  EXPECT_FALSE(start("library 1 on a processor", "3x3").timed);
}

TEST_F(KernelCacheTest, BrokenFileIsReplaced) {
  EXPECT_TRUE(start("library 1", "3x3").timed);
  const std::filesystem::path file = KernelCache(folder_, "library 1").file();
  for (const char* text :
       {"", "{", "[1, 2]", R"({"identity": "library 1", "choices": {"3x3": {"kernel": 7}}})"}) {
    std::ofstream(file) << text;
    EXPECT_TRUE(start("library 1", "3x3").timed) << text;
    EXPECT_FALSE(start("library 1", "3x3").timed) << text;
  }
}

// The file may be from another version of the program.
TEST_F(KernelCacheTest, ChoiceOfAKernelThatDoesNotExistIsReplaced) {
  const auto keep_removed = [&] {
    KernelChoices choices(ChooseBy::time);
    KernelCache(folder_, "library 1").use(choices, [&] { choices.keep("3x3", {.candidate = "removed"}); });
  };
  keep_removed();
  EXPECT_TRUE(start("library 1", "3x3").timed);
  EXPECT_FALSE(start("library 1", "3x3").timed);
  EXPECT_EQ(start("library 1", "3x3").chosen, "winograd");
  keep_removed();
  start("library 1", "3x3", {.candidate = "winograd"},
        [&] { start("library 1", "3x3", {.candidate = "direct"}); });
  EXPECT_EQ(start("library 1", "3x3").chosen, "direct") << "the first of two concurrent choices";
}

TEST_F(KernelCacheTest, UnwritableFolderOnlyRepeatsTheTiming) {
  std::ofstream(folder_) << "a file where the folder should be";
  EXPECT_TRUE(start("library 1", "3x3").timed);
  EXPECT_TRUE(start("library 1", "3x3").timed);
}

// If a start held the lock while timing kernels, this test would deadlock.
TEST_F(KernelCacheTest, ConcurrentStartsDoNotBlockAndKeepAllChoices) {
  EXPECT_TRUE(start("library 1", "3x3", {.candidate = "winograd"}, [&] {
                EXPECT_TRUE(start("library 1", "5x5").timed);
              }).timed);
  EXPECT_FALSE(start("library 1", "3x3").timed);
  EXPECT_FALSE(start("library 1", "5x5").timed) << "the choice of a concurrent job was lost";
}

TEST_F(KernelCacheTest, FirstOfTwoConcurrentChoicesIsKept) {
  start("library 1", "3x3", {.candidate = "winograd"},
        [&] { start("library 1", "3x3", {.candidate = "direct"}); });
  EXPECT_EQ(start("library 1", "3x3").chosen, "direct");
}

TEST_F(KernelCacheTest, ManyConcurrentStartsLoseNothing) {
  constexpr int kStarts = 16;
  {
    std::vector<std::jthread> starts;
    for (int i = 0; i < kStarts; ++i)
      starts.emplace_back([this, i] { start("library 1", fmt::format("shape {}", i)); });
  }
  for (int i = 0; i < kStarts; ++i)
    EXPECT_FALSE(start("library 1", fmt::format("shape {}", i)).timed) << "shape " << i << " was lost";
  EXPECT_EQ(left_over(), std::vector<std::string>());
}

TEST_F(KernelCacheTest, UnavailableLockCausesAWarning) {
  std::filesystem::create_directories(folder_ / "lock");  // a folder cannot be opened as a file
  EXPECT_TRUE(start("library 1", "3x3").timed);
  EXPECT_FALSE(start("library 1", "3x3").timed);
}

TEST_F(KernelCacheTest, ChoicesOfABusyMachineAreTimedAgain) {
  const KernelChoice busy{.candidate = "direct", .microseconds = 9, .waited = 0.5};
  EXPECT_TRUE(start("library 1", "3x3", busy).timed);
  EXPECT_TRUE(start("library 1", "3x3", busy).timed);
  EXPECT_EQ(start("library 1", "3x3").chosen, "winograd");
  EXPECT_FALSE(start("library 1", "3x3", busy).timed);
  EXPECT_EQ(start("library 1", "3x3", busy).chosen, "winograd");
}

TEST_F(KernelCacheTest, TimingEndsAfterFiveBusyStarts) {
  const KernelChoice busy{.candidate = "direct", .microseconds = 9, .waited = 0.5};
  int timed = 0;
  for (int i = 0; i < 10; ++i) timed += start("library 1", "3x3", busy).timed ? 1 : 0;
  EXPECT_EQ(timed, 5);
}

TEST_F(KernelCacheTest, AllFilesAreListed) {
  EXPECT_TRUE(kept_kernels(folder_).empty()) << "without the folder";
  start("library 1", "3x3", {.candidate = "winograd", .microseconds = 2, .first_microseconds = 3});
  start("library 2", "5x5");
  std::ofstream(folder_ / "kernels-0.json") << "{";
  std::ofstream(folder_ / "kernels-1.json") << R"({"identity": 7, "choices": {}})";
  std::map<std::string, KeptKernels> listed;
  for (const KeptKernels& kept : kept_kernels(folder_)) listed[kept.identity] = kept;
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed.at("library 1").file, KernelCache(folder_, "library 1").file());
  const KernelChoice& choice = listed.at("library 1").choices.at("3x3");
  EXPECT_EQ(choice.candidate, "winograd");
  EXPECT_EQ(choice.first_microseconds, 3);
  EXPECT_GT(choice.chosen_at, 0);
  EXPECT_TRUE(listed.at("library 2").choices.contains("5x5"));
}

TEST_F(KernelCacheTest, FilesOfEarlierVersionsAreRead) {
  EXPECT_TRUE(start("library 1", "3x3").timed);
  std::ofstream(KernelCache(folder_, "library 1").file())
      << R"({"identity": "library 1", "choices": {"3x3":)"
      << R"({"kernel": "direct", "microseconds": 5, "waited": 0, "contests": 1}}})";
  EXPECT_EQ(start("library 1", "3x3").chosen, "direct");
  const KernelChoice choice = kept_kernels(folder_).at(0).choices.at("3x3");
  EXPECT_EQ(choice.first_microseconds, 0);
  EXPECT_EQ(choice.chosen_at, 0);
}

TEST(KernelChoicesText, RoundTrips) {
  KernelChoices choices(ChooseBy::time);
  choices.keep("a \"quoted\" key", {.candidate = "winograd in 2 pieces",
                                    .microseconds = 12.5,
                                    .first_microseconds = 20.25,
                                    .waited = 0.5,
                                    .chosen_at = 1'700'000'000});
  KernelChoices read(ChooseBy::time);
  from_text(to_text(choices), read);
  const KernelChoice& choice = read.kept().at("a \"quoted\" key");
  EXPECT_EQ(choice.candidate, "winograd in 2 pieces");
  EXPECT_EQ(choice.first_microseconds, 20.25);
  EXPECT_EQ(choice.chosen_at, 1'700'000'000);
}

// A checkpoint contains them, and may come from an untrusted source.
TEST(KernelChoicesText, MalformedTextIsRefused) {
  const auto refused = [](const std::string& text) {
    KernelChoices choices(ChooseBy::time);
    return message_of<DataError>([&] { from_text(text, choices); });
  };
  const auto with = [](const std::string& contests) {
    return R"({"3x3": {"kernel": "direct", "microseconds": 1, "waited": 0, "contests": )" + contests + "}}";
  };
  KernelChoices choices(ChooseBy::time);
  from_text(with("2"), choices);
  EXPECT_EQ(choices.kept().at("3x3").contests, 2);
  for (const char* contests : {"1e300", "-1", "2.5", "99999999999999999999", "null", "\"2\""})
    EXPECT_NE(refused(with(contests)).find("\"contests\""), std::string::npos) << contests;
  for (const char* moment : {"1e300", "-1", "99999999999999", "null"})
    EXPECT_NE(refused(with(std::string("2, \"chosen_at\": ") + moment)).find("\"chosen_at\""),
              std::string::npos)
        << moment;
  const std::string nested = refused(std::string(1000000, '['));
  EXPECT_NE(nested.find("kernel"), std::string::npos) << nested;
  EXPECT_EQ(nested.find("json.exception"), std::string::npos)
      << "the nesting is refused before the parser fails: " << nested;
  for (const char* text :
       {"", "7", "[1]", "{\"3x3\": 7}", "{\"3x3\": {\"kernel\": 7}}", "{\"3x3\": {}}", "\xff"})
    EXPECT_NE(refused(text).find("kernel"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep
