// SPDX-License-Identifier: Apache-2.0
#include "launch/program/devices/kernel_cache.h"

#include <fstream>
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

TEST(KernelChoicesText, RoundTrips) {
  KernelChoices choices(ChooseBy::time);
  choices.keep("a \"quoted\" key",
               {.candidate = "winograd in 2 pieces", .microseconds = 12.5, .waited = 0.5});
  KernelChoices read(ChooseBy::time);
  from_text(to_text(choices), read);
  EXPECT_EQ(read.kept().at("a \"quoted\" key").candidate, "winograd in 2 pieces");
  EXPECT_THROW(from_text("{\"key\": 3}", read), DataError);
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
