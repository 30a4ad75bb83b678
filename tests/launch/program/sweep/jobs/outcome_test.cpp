// SPDX-License-Identifier: Apache-2.0
//
// The text and charts of a simulated sweep.
#include "launch/program/sweep/jobs/outcome.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "launch/program/sweep/coordinates.h"
#include "launch/program/sweep/report.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

const SweepSpace kSpace({{.key = "model.name", .values = {"\"mlp\"", "\"a<b\""}},
                         {.key = "optimizer.learning_rate",
                          .values = {},
                          .range = {.min = 0.01, .max = 1, .logarithmic = true}}});

SweepRow row_of(std::int64_t trial, const char* name, std::int64_t epochs, double accuracy) {
  return {.trial = trial,
          .settings = {{"model.name", name}, {"optimizer.learning_rate", "0.1"}},
          .epochs = epochs,
          .steps = 100 * epochs,
          .measure = {.accuracy = accuracy, .loss = 0.5, .samples_per_second = 1000},
          .cost = {.parameters = 1000 + trial, .flops_per_sample = 2'000'000},
          .complete = epochs == 9};
}

// Trials that were fully trained, stopped early, and failed at once.
SweepOutcome made_up_outcome() {
  SweepOutcome outcome{.epochs = 9, .slots = 2, .jobs = 4, .seconds = 60, .busy_share = 0.975};
  outcome.rows = {row_of(1, "\"mlp\"", 9, 0.75), row_of(0, "\"a<b\"", 3, 0.8), row_of(2, "\"mlp\"", 0, 0)};
  outcome.rows[0].pareto = true;
  outcome.rows[2].problem = "no room, \"none\" at all";
  return outcome;
}

TEST(SweepOutcome, BestTrialIsFullyTrained) {
  const SweepOutcome outcome = made_up_outcome();
  ASSERT_NE(outcome.best(), nullptr);
  EXPECT_EQ(outcome.best()->trial, 1);
  EXPECT_EQ(outcome.steps(), 1200);
  EXPECT_EQ(outcome.steps_of_all(), 1800) << "the trial that failed at once has no steps";
  EXPECT_EQ(SweepOutcome{}.best(), nullptr);
}

// With halving a trial that is stopped early may rank before the one that failed.
TEST(SweepOutcome, FailureIsATrialWithAReason) {
  SweepOutcome outcome = made_up_outcome();
  ASSERT_NE(outcome.failure(), nullptr);
  EXPECT_EQ(outcome.failure()->trial, 2);
  outcome.rows.pop_back();
  EXPECT_EQ(outcome.failure(), nullptr);
}

TEST(SweepOutcome, IsWrittenAsCsv) {
  EXPECT_EQ(
      sweep_csv(made_up_outcome(), kSpace),
      "trial,state,epochs,steps,accuracy,loss,samples_per_second,parameters,flops_per_sample,seconds,pareto,"
      "model.name,"
      "optimizer.learning_rate,problem\n"
      "1,complete,9,900,0.75,0.5,1000,1001,2000000,0.000,yes,mlp,0.1,\n"
      "0,stopped early,3,300,0.8,0.5,1000,1000,2000000,0.000,no,a<b,0.1,\n"
      "2,failed,0,0,,,,,,0.000,no,mlp,0.1,\"no room, \"\"none\"\" at all\"\n");
}

TEST(SweepOutcome, TableShowsTheCostOfNetworksThatDiffer) {
  SweepOutcome outcome = made_up_outcome();
  expect_in_order(sweep_table(outcome, {}), {"parameters", "MFLOP", "settings", "1,001", "2", "1,000", "2"});
  outcome.rows[0].cost = outcome.rows[1].cost;
  EXPECT_EQ(sweep_table(outcome, {}).find("parameters"), std::string::npos);
}

TEST(SweepOutcome, SlowRatesHaveDecimals) {
  SweepOutcome outcome = made_up_outcome();
  outcome.rows[0].measure.samples_per_second = 0.25;
  expect_parts(sweep_table(outcome, {}), {" 0.25 ", " 1,000 "});
  const SweepResult slow{.job = {}, .epochs = 9, .measure = outcome.rows[0].measure};
  expect_parts(sweep_result_line(slow, outcome.rows[0].settings, 9), {" 0.25 samples/s"});
}

TEST(SweepOutcome, IsWrittenAsJson) {
  const auto told = nlohmann::json::parse(sweep_json(made_up_outcome(), "runs/sweep"));
  EXPECT_EQ(told["best"], 1);
  EXPECT_EQ(told["busy_share"], 0.975);
  EXPECT_EQ(told["trials"][0]["pareto"], true);
  EXPECT_TRUE(told["trials"][2]["accuracy"].is_null());
  EXPECT_EQ(told["trials"][2]["problem"], "no room, \"none\" at all");
  const auto nothing = nlohmann::json::parse(sweep_json({}, "runs/sweep"));
  EXPECT_TRUE(nothing["best"].is_null());
  EXPECT_TRUE(nothing["busy_share"].is_null());
}

int count_in(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(SweepOutcome, IsDrawnAsParallelCoordinates) {
  const std::string svg = parallel_coordinates(made_up_outcome(), kSpace);
  EXPECT_EQ(count_in(svg, "<title>trial "), 2) << "the trial that failed at once has no line";
  EXPECT_EQ(count_in(svg, "<b"), 0) << "names are escaped";
  EXPECT_EQ(count_in(svg, "a&lt;b"), 2) << "on the axis and in the title of the trial";
  for (const char* title : {">learning_rate<", ">name<", ">samples/s<", ">accuracy, %<"})
    EXPECT_EQ(count_in(svg, title), 1) << title;
  EXPECT_EQ(parallel_coordinates(made_up_outcome(), kSpace), svg);
  EXPECT_EQ(count_in(svg, "nan") + count_in(svg, "inf"), 0) << "all samples/s are equal";
  EXPECT_EQ(count_in(parallel_coordinates({}, kSpace), "<svg"), 1) << "a sweep without results has a chart";
}

}  // namespace
}  // namespace lockstep
