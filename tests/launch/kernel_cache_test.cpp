// SPDX-License-Identifier: Apache-2.0
#include "launch/kernel_cache.h"

#include <fstream>

#include <gtest/gtest.h>

#include "core/error.h"

namespace lockstep {
namespace {

class KernelCacheTest : public testing::Test {
 protected:
  KernelCacheTest()
      : folder_(std::filesystem::path(testing::TempDir()) /
                fmt::format("lockstep_kernel_cache_{}_{}", getpid(),
                            testing::UnitTest::GetInstance()->current_test_info()->name())) {}
  ~KernelCacheTest() override { std::filesystem::remove_all(folder_); }

  // What a start of the program does; returns how many candidates were timed.
  int start(const std::string& identity, const std::string& key, std::string* chosen = nullptr) {
    KernelChoices choices(ChooseBy::time);
    int timed = 0;
    KernelCache(folder_, identity).use(choices, [&] {
      const std::vector<std::string> candidates = {"direct", "winograd"};
      const std::size_t best = choices.choose(key, candidates, [&](std::size_t i) {
        ++timed;
        return i == 0 ? 2.0 : 1.0;
      });
      if (chosen != nullptr) *chosen = candidates[best];
    });
    return timed;
  }

  std::filesystem::path folder_;
};

TEST_F(KernelCacheTest, ASecondStartTimesNothing) {
  std::string chosen;
  EXPECT_EQ(start("library 1 on a processor", "3x3"), 2);
  EXPECT_EQ(start("library 1 on a processor", "3x3", &chosen), 0);
  EXPECT_EQ(chosen, "winograd");
  EXPECT_EQ(start("library 1 on a processor", "5x5"), 2) << "another shape";
  EXPECT_EQ(start("library 1 on a processor", "3x3"), 0) << "the first shape was forgotten";
}

TEST_F(KernelCacheTest, AnotherLibraryOrProcessorTimesAgain) {
  EXPECT_EQ(start("library 1 on a processor", "3x3"), 2);
  EXPECT_EQ(start("library 2 on a processor", "3x3"), 2);
  EXPECT_EQ(start("library 1 on a processor", "3x3"), 0);
}

TEST_F(KernelCacheTest, ABrokenFileIsReplaced) {
  EXPECT_EQ(start("library 1", "3x3"), 2);
  const std::filesystem::path file = KernelCache(folder_, "library 1").file();
  for (const char* text :
       {"", "{", "[1, 2]", R"({"identity": "library 1", "choices": {"3x3": {"kernel": 7}}})"}) {
    std::ofstream(file) << text;
    EXPECT_EQ(start("library 1", "3x3"), 2) << text;
    EXPECT_EQ(start("library 1", "3x3"), 0) << text;
  }
}

TEST_F(KernelCacheTest, AFolderThatCannotBeWrittenCostsOnlyTheTiming) {
  std::filesystem::create_directories(folder_.parent_path());
  std::ofstream(folder_) << "a file where the folder should be";
  EXPECT_EQ(start("library 1", "3x3"), 2);
  EXPECT_EQ(start("library 1", "3x3"), 2);
}

TEST(KernelChoicesText, GoesToOtherRanksAndBack) {
  KernelChoices choices(ChooseBy::time);
  choices.keep("a \"quoted\" key", {.candidate = "winograd in 2 pieces", .microseconds = 12.5});
  KernelChoices read(ChooseBy::time);
  from_text(to_text(choices), read);
  EXPECT_EQ(read.kept().at("a \"quoted\" key").candidate, "winograd in 2 pieces");
  EXPECT_THROW(from_text("{\"key\": 3}", read), DataError);
}

}  // namespace
}  // namespace lockstep
