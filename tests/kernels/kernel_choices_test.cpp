// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernel_choices.h"

#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

const std::vector<std::string> kCandidates = {"careful", "quick", "middling"};
constexpr double kTimes[] = {30, 10, 20};

// Counts how often it is asked.
struct Clock {
  int asked = 0;
  double operator()(std::size_t candidate) {
    ++asked;
    return kTimes[candidate];
  }
};

TEST(KernelChoices, ByTimeTakesTheFastestAndAsksOnce) {
  KernelChoices choices(ChooseBy::time);
  Clock clock;
  EXPECT_EQ(choices.choose("shape", kCandidates, std::ref(clock)), 1u);
  EXPECT_EQ(clock.asked, 3);
  EXPECT_EQ(choices.choose("shape", kCandidates, std::ref(clock)), 1u);
  EXPECT_EQ(clock.asked, 3) << "a kept choice was timed again";
  EXPECT_EQ(choices.kept().at("shape").candidate, "quick");
  EXPECT_EQ(choices.kept().at("shape").microseconds, 10);
}

TEST(KernelChoices, AKeptChoiceWinsOverAFasterCandidate) {
  KernelChoices choices(ChooseBy::time);
  choices.keep("shape", {.candidate = "middling", .microseconds = 20});
  Clock clock;
  EXPECT_EQ(choices.choose("shape", kCandidates, std::ref(clock)), 2u);
  EXPECT_EQ(clock.asked, 0);
}

TEST(KernelChoices, AKeptChoiceThatIsNoLongerThereIsReplaced) {
  KernelChoices choices(ChooseBy::time);
  choices.keep("shape", {.candidate = "gone", .microseconds = 1});
  Clock clock;
  EXPECT_EQ(choices.choose("shape", kCandidates, std::ref(clock)), 1u);
  EXPECT_EQ(choices.kept().at("shape").candidate, "quick");
}

TEST(KernelChoices, ByNameNeverTimes) {
  Clock clock;
  KernelChoices named(ChooseBy::name, "middling");
  EXPECT_EQ(named.choose("shape", kCandidates, std::ref(clock)), 2u);
  KernelChoices unknown(ChooseBy::name, "nowhere");
  EXPECT_EQ(unknown.choose("shape", kCandidates, std::ref(clock)), 0u);
  EXPECT_EQ(clock.asked, 0);
}

TEST(KernelChoices, OneCandidateIsNotTimed) {
  KernelChoices choices(ChooseBy::time);
  Clock clock;
  EXPECT_EQ(choices.choose("shape", std::vector<std::string>{"only"}, std::ref(clock)), 0u);
  EXPECT_EQ(clock.asked, 0);
  EXPECT_EQ(choices.kept().at("shape").candidate, "only");
}

}  // namespace
}  // namespace lockstep
