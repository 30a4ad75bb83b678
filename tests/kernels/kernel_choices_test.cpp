// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernel_choices.h"

#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

const std::vector<std::string> kNames = {"careful", "quick", "middling"};

// A contest with a given outcome that counts how often it runs.
struct Contest {
  KernelChoice outcome{.candidate = "quick", .microseconds = 10};
  int held = 0;

  std::optional<std::size_t> choose(KernelChoices& choices, const std::vector<std::string>& names = kNames,
                                    const std::function<bool(std::size_t)>& usable = nullptr) {
    return choices.choose("shape", {.names = names, .usable = usable, .contest = [this] {
                                      ++held;
                                      return outcome;
                                    }});
  }
};

TEST(KernelChoices, ByTimeRunsOneContestPerShape) {
  KernelChoices choices(ChooseBy::time);
  Contest contest;
  EXPECT_EQ(contest.choose(choices), 1u);
  EXPECT_EQ(contest.choose(choices), 1u);
  EXPECT_EQ(contest.held, 1) << "an equal shape must not be timed again";
  EXPECT_EQ(choices.kept().at("shape").candidate, "quick");
  EXPECT_EQ(choices.kept().at("shape").microseconds, 10);
  EXPECT_GT(choices.kept().at("shape").chosen_at, 0);
}

TEST(KernelChoices, AKeptChoiceWinsOverAFasterCandidate) {
  KernelChoices choices(ChooseBy::time);
  choices.keep("shape", {.candidate = "middling", .microseconds = 20});
  Contest contest;
  EXPECT_EQ(contest.choose(choices), 2u);
  EXPECT_EQ(contest.held, 0);
}

TEST(KernelChoices, AnUnusableKeptChoiceIsReplaced) {
  KernelChoices choices(ChooseBy::time);
  choices.keep("shape", {.candidate = "gone", .microseconds = 1});
  Contest contest;
  EXPECT_EQ(contest.choose(choices), 1u);
  EXPECT_EQ(choices.kept().at("shape").candidate, "quick");

  choices.keep("shape", {.candidate = "middling", .microseconds = 1});
  EXPECT_EQ(contest.choose(choices, kNames, [](std::size_t i) { return i != 2; }), 1u);
  EXPECT_EQ(contest.held, 2);
}

TEST(KernelChoices, ByNameTheFirstUsableCandidateIsChosenIfThereIsOne) {
  KernelChoices named(ChooseBy::name, "quick");
  Contest contest;
  EXPECT_EQ(contest.choose(named, kNames, [](std::size_t i) { return i == 2; }), 2u);
  EXPECT_EQ(contest.choose(named, kNames, [](std::size_t) { return false; }), std::nullopt);
  KernelChoices timed(ChooseBy::time);
  const std::vector<std::string> one = {"careful"};
  EXPECT_EQ(timed.choose("shape", {.names = one, .usable = [](std::size_t) { return false; }}), std::nullopt);
  EXPECT_EQ(timed.choose("shape", {.names = kNames, .usable = [](std::size_t i) { return i == 2; }}), 2u);
}

TEST(KernelChoices, ByNameRunsNoContest) {
  Contest contest;
  KernelChoices named(ChooseBy::name, "middling");
  EXPECT_EQ(contest.choose(named), 2u);
  EXPECT_EQ(contest.choose(named, kNames, [](std::size_t i) { return i == 0; }), 0u);
  KernelChoices unknown(ChooseBy::name, "nowhere");
  EXPECT_EQ(contest.choose(unknown), 0u);
  EXPECT_EQ(contest.held, 0);
}

TEST(KernelChoices, WithoutAContestTheFirstCandidateIsKept) {
  KernelChoices choices(ChooseBy::time);
  EXPECT_EQ(choices.choose("shape", {.names = kNames}), 0u);
  EXPECT_EQ(choices.kept().at("shape").candidate, "careful");
  EXPECT_EQ(choices.kept().at("shape").chosen_at, 0) << "only contests have a date";
  EXPECT_EQ(choices.progress().held, 0u);
}

TEST(KernelChoices, AChoiceOfABusyMachineIsTimedAgain) {
  const KernelChoice busy{.candidate = "careful", .microseconds = 30, .waited = 0.5};
  ASSERT_FALSE(busy.settled());
  KernelChoices choices(ChooseBy::time);
  choices.keep_in_doubt("shape", busy);
  Contest contest;
  EXPECT_EQ(contest.choose(choices), 1u);
  EXPECT_EQ(contest.choose(choices), 1u);
  EXPECT_EQ(contest.held, 1) << "one contest per start is enough";
  EXPECT_EQ(choices.kept().at("shape").contests, 2);
  EXPECT_TRUE(choices.kept().at("shape").settled());
}

TEST(KernelChoices, TheLessDisturbedOfTwoContestsCounts) {
  for (const double waited : {0.3, 0.7}) {
    KernelChoices choices(ChooseBy::time);
    choices.keep_in_doubt("shape", {.candidate = "careful", .waited = 0.5, .contests = 3});
    Contest contest{.outcome = {.candidate = "quick", .waited = waited}};
    EXPECT_EQ(contest.choose(choices), waited < 0.5 ? 1u : 0u);
    EXPECT_EQ(choices.kept().at("shape").contests, 4);
    EXPECT_FALSE(choices.kept().at("shape").settled());
  }
}

TEST(KernelChoices, ChoicesOfABusyMachineSettleAfterFiveContests) {
  EXPECT_FALSE((KernelChoice{.waited = 0.9, .contests = 4}).settled());
  EXPECT_TRUE((KernelChoice{.waited = 0.9, .contests = 5}).settled());
}

TEST(KernelChoices, WithoutContestsCountsUnknownShapes) {
  KernelChoices choices(ChooseBy::time);
  choices.keep("known", {.candidate = "middling"});
  KernelChoices untimed = KernelChoices::without_contests(choices);
  Contest contest;
  EXPECT_EQ(untimed.choose("known", {.names = kNames}), 2u);
  EXPECT_EQ(contest.choose(untimed), 0u);
  EXPECT_EQ(contest.choose(untimed), 0u);
  EXPECT_EQ(untimed.choose("without a contest", {.names = kNames}), 0u);
  EXPECT_EQ(contest.held, 0);
  EXPECT_EQ(untimed.unknown(), 1u);
}

TEST(KernelChoices, ReportTheirProgress) {
  KernelChoices choices(ChooseBy::time);
  std::vector<std::size_t> seen;
  choices.observe([&](const KernelChoices::Progress& progress) {
    seen.push_back(progress.held);
    EXPECT_EQ(progress.expected, 2u);
  });
  choices.expect_contests(2);
  for (const char* key : {"one", "two", "one"}) {
    choices.choose(key, {.names = kNames, .contest = [] { return KernelChoice{.candidate = "quick"}; }});
  }
  EXPECT_EQ(seen, (std::vector<std::size_t>{0, 1}));
}

}  // namespace
}  // namespace lockstep
