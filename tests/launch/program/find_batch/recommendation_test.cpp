// SPDX-License-Identifier: Apache-2.0
#include "launch/program/find_batch/recommendation.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "launch/program/config/config.h"
#include "launch/program/find_batch/report.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

const std::vector<BatchFigure> kFigures = {
    {.batch = 8, .samples_per_second = 500, .step_seconds = 0.016, .busy = 0.5, .bytes = 1 << 20},
    {.batch = 32, .samples_per_second = 960, .step_seconds = 0.033, .busy = 0.8, .bytes = 4 << 20},
    {.batch = 64, .samples_per_second = 1000, .step_seconds = 0.064, .busy = 0.9, .bytes = 8 << 20},
    {.batch = 128, .problem = "out of memory"}};

AsConfigured configured(std::int64_t batch, std::int64_t accumulation = 1,
                        RateScaling scaling = RateScaling::linear) {
  return {.batch = batch, .accumulation = accumulation, .ranks = 2, .learning_rate = 0.1, .scaling = scaling};
}

TEST(Recommendation, KeepsABatchThatIsFastEnough) {
  for (const std::int64_t batch : {32, 64}) {
    const auto found = recommend_batch(kFigures, configured(batch));
    EXPECT_FALSE(found->changes);
    EXPECT_EQ(found->batch, batch);
    EXPECT_EQ(found->global_batch, 2 * batch);
    EXPECT_EQ(found->learning_rate, 0.1);
  }
  EXPECT_EQ(recommend_batch({kFigures.front(), kFigures.back()}, configured(8))->reason,
            "no other batch was measured");
}

TEST(Recommendation, TakesALargerBatchAndScalesTheRate) {
  const auto linear = recommend_batch(kFigures, configured(8));
  EXPECT_TRUE(linear->changes);
  EXPECT_EQ(linear->batch, 32);
  EXPECT_EQ(linear->accumulation, 1);
  EXPECT_EQ(linear->global_batch, 64);
  EXPECT_DOUBLE_EQ(linear->learning_rate, 0.4);
  EXPECT_EQ(linear->warmup_epochs, 1) << "a higher rate needs a warm-up";
  EXPECT_EQ(recommend_batch(kFigures, configured(8, 1, RateScaling::none))->warmup_epochs, 0);
  EXPECT_DOUBLE_EQ(recommend_batch(kFigures, configured(8, 1, RateScaling::root))->learning_rate, 0.2);
  EXPECT_DOUBLE_EQ(recommend_batch(kFigures, configured(8, 1, RateScaling::none))->learning_rate, 0.1);
}

// Linear scaling from 8 to 1024 samples would multiply the rate by 128.
TEST(Recommendation, NoiseScaleLimitsTheRate) {
  AsConfigured noisy = configured(4);
  noisy.learning_rate = 0.01;
  EXPECT_DOUBLE_EQ(noisy.rate_for(1024), 1.28);
  noisy.critical_batch = 72;  // (1 + 72 / 8) / (1 + 72 / 1024) = 9.34
  EXPECT_DOUBLE_EQ(noisy.rate_for(1024), 0.0934);
  EXPECT_TRUE(noisy.is_held_back(1024));
  noisy.critical_batch = std::numeric_limits<double>::infinity();
  EXPECT_DOUBLE_EQ(noisy.rate_for(1024), 1.28);
  noisy.critical_batch = 1e9;  // noise only: proportional
  EXPECT_DOUBLE_EQ(noisy.rate_for(16), 0.02);
  noisy.critical_batch = 72;
  EXPECT_DOUBLE_EQ(noisy.rate_for(4), 0.005) << "a smaller batch follows the scaling rule";
  EXPECT_FALSE(noisy.is_held_back(4));
}

TEST(Recommendation, KeepsTheSamplesPerStepByAccumulation) {
  // A batch that does not fit in one piece fits in four.
  const auto in_pieces = recommend_batch(kFigures, configured(128));
  EXPECT_EQ(in_pieces->batch, 32);
  EXPECT_EQ(in_pieces->accumulation, 4);
  EXPECT_EQ(in_pieces->global_batch, 256);
  EXPECT_EQ(in_pieces->learning_rate, 0.1);
  const auto fewer = recommend_batch(kFigures, configured(8, 8));
  EXPECT_EQ(fewer->batch, 32);
  EXPECT_EQ(fewer->accumulation, 2);
  EXPECT_EQ(fewer->learning_rate, 0.1);
}

// As train.reproducible requires.
TEST(Recommendation, KeepsAnAccumulationOfAPowerOfTwo) {
  const std::vector<BatchFigure> figures = {{.batch = 16, .samples_per_second = 10},
                                            {.batch = 32, .samples_per_second = 100}};
  AsConfigured of_powers = configured(16, 6);
  EXPECT_EQ(recommend_batch(figures, of_powers)->accumulation, 3);
  of_powers.powers_of_two = true;
  EXPECT_EQ(recommend_batch(figures, of_powers)->accumulation, 4);
}

TEST(Recommendation, StepsHaveAtMostTheSamplesOfTheTrainingSet) {
  AsConfigured large{.batch = 1000, .learning_rate = 0.1, .samples = 1000};
  const auto with = [&](std::int64_t batch) {
    return recommend_batch(
        {{.batch = batch, .samples_per_second = 1000}, {.batch = 1000, .samples_per_second = 500}}, large);
  };
  EXPECT_EQ(with(56)->accumulation, 17) << "18 is closer to 1000 samples";
  EXPECT_EQ(with(56)->global_batch, 952);
  large.powers_of_two = true;
  EXPECT_EQ(with(333)->accumulation, 2) << "4 is closer to 1000 samples by its logarithm";
}

// With train.batch = "auto" the first batch of the search has no advantage.
TEST(Recommendation, AutomaticBatchIsTheSmallestFastOne) {
  for (const std::int64_t first : {8, 64, 128}) {
    AsConfigured automatic = configured(first, 3);
    automatic.automatic = true;
    const auto best = recommend_batch(kFigures, automatic);
    EXPECT_TRUE(best->changes);
    EXPECT_EQ(best->batch, 32);
    EXPECT_EQ(best->accumulation, 3);
    EXPECT_EQ(best->global_batch, 32 * 3 * 2);
  }
}

TEST(Recommendation, NeedsAMeasurement) {
  EXPECT_FALSE(recommend_batch({{.batch = 1, .problem = "out of memory"}}, configured(1)).has_value());
}

TEST(Recommendation, FollowsTheOptimizersRule) {
  EXPECT_EQ(scaling_for("sgd"), RateScaling::linear);
  EXPECT_EQ(scaling_for("adamw"), RateScaling::root);
  EXPECT_EQ(scaling_for("lars"), RateScaling::root);
}

TEST(Recommendation, ExplainsTheCriticalBatch) {
  const auto told = [&](double critical, std::int64_t global) {
    return describe_noise(critical, global, kFigures, configured(64));
  };
  EXPECT_EQ(told(0, 128), "");
  const std::string unknown = told(std::numeric_limits<double>::infinity(), 128);
  EXPECT_NE(unknown, "");
  EXPECT_TRUE(numbers_named_in(unknown).empty()) << unknown;
  EXPECT_EQ(numbers_named_in(told(64, 128)), (std::vector<double>{64, 128, 3})) << told(64, 128);
  EXPECT_EQ(told(64, 128).find("samples/s"), std::string::npos) << told(64, 128);
  expect_parts(told(30, 128), {"500 samples/s"});
  for (const double number : {30.0, 128.0, 8.0})
    EXPECT_EQ(std::ranges::count(numbers_named_in(told(30, 128)), number), 1) << told(30, 128);
}

FoundBatch found() {
  FoundBatch found{.configured = configured(8), .figures = kFigures, .most = 100, .most_run = 100};
  found.recommended = *recommend_batch(kFigures, found.configured);
  found.ratio = 1.9;
  return found;
}

TEST(BatchReport, HasALineForEachBatch) {
  const std::string table = batch_table(found(), {{.batch = 8, .of_epochs = 0.5, .of_steps = 0.25},
                                                  {.batch = 32, .problem = "the loss is not finite"}});
  expect_parts(lines_naming(table, "50.00 %"), {"    8 ", "25.00 %", "configured"});
  expect_parts(lines_naming(table, "the loss is not finite"), {"   32 ", "96.0 %", "recommended"});
  expect_parts(lines_naming(table, "8.0 MiB"), {"   64 "});
  expect_parts(lines_naming(table, "out of memory"), {"  128 "});
}

TEST(BatchReport, SlowRatesHaveDecimals) {
  FoundBatch slow = found();
  for (BatchFigure& figure : slow.figures) figure.samples_per_second /= 1000;
  expect_parts(batch_line(slow.figures.front()), {" 0.5 samples/s"});
  expect_parts(lines_naming(batch_table(slow, {}), "recommended"), {" 0.96 ", "96.0 %"});
}

TEST(BatchReport, NamesTheRecommendedSettings) {
  EXPECT_EQ(recommended_training(found(), "a.toml", {"world.device=cpu", "train.batch=8"}),
            (std::vector<std::string>{"train", "a.toml", "--set", "world.device=cpu", "--set",
                                      "train.batch=32", "--set", "optimizer.learning_rate=0.4", "--set",
                                      "schedule.warmup_epochs=1"}));
  FoundBatch same = found();
  same.recommended = {.batch = same.configured.batch,
                      .accumulation = same.configured.accumulation,
                      .learning_rate = same.configured.learning_rate,
                      .warmup_epochs = same.configured.warmup_epochs};
  EXPECT_TRUE(recommended_training(same, "a.toml", {"world.device=cpu"}).empty());
  std::string verdict;
  for (const std::string& line : batch_verdict(found())) verdict += line + '\n';
  expect_parts(verdict, {"batch 32", "learning rate 0.4", "linear", "1.90"});
  EXPECT_EQ(numbers_named_in(batch_verdict(found()).front()), std::vector<double>{100});
}

// With the rate and the warm-up that load_config chose for the configured batch.
TEST(BatchReport, PrintedCommandTrainsAsRecommended) {
  const TemporaryFolder folder;
  folder.write("own.toml", {});
  const std::string file = (folder.path() / "own.toml").string();
  const std::vector<std::string> overrides = {"data.path=x", "train.batch=8", "train.epochs=5"};
  const Config given = load_config(file, overrides);
  for (const RateScaling scaling : {RateScaling::none, RateScaling::linear}) {
    FoundBatch chosen = found();
    chosen.configured.learning_rate = given.schedule.learning_rate;
    chosen.configured.warmup_epochs = given.schedule.warmup_epochs;
    chosen.configured.scaling = scaling;
    chosen.recommended = *recommend_batch(kFigures, chosen.configured);
    const std::vector<std::string> words = recommended_training(chosen, file, overrides);
    std::vector<std::string> settings;  // after "train FILE", each after --set
    for (std::size_t i = 3; i < words.size(); i += 2) settings.push_back(words[i]);
    const Config trained = load_config(file, settings);
    EXPECT_EQ(trained.loader.batch, 32);
    EXPECT_EQ(trained.schedule.learning_rate, chosen.recommended.learning_rate);
    EXPECT_EQ(trained.schedule.warmup_epochs, chosen.recommended.warmup_epochs);
  }
}

// The first batch is slow, recommended, fast or cannot be trained.
TEST(BatchReport, AutomaticBatchIsNotCalledConfigured) {
  for (const std::int64_t first : {8, 32, 64, 128}) {
    FoundBatch automatic = found();
    automatic.configured.batch = first;
    automatic.configured.automatic = true;
    automatic.multiple = 5;
    automatic.recommended = *recommend_batch(kFigures, automatic.configured);
    std::string text = batch_table(automatic, {});
    for (const std::string& line : batch_verdict(automatic)) text += line + '\n';
    for (const char* part : {"configured", "given configuration", "Keep"})
      EXPECT_EQ(text.find(part), std::string::npos) << text;
    expect_parts(text, {"Recommended: batch 32", fmt::format("first batch {}", first)});
    const std::vector<std::string> words = recommended_training(automatic, "a.toml", {});
    EXPECT_EQ(std::ranges::count(words, "train.batch=32"), 1) << first;
    const auto written = nlohmann::json::parse(batch_json(automatic, {}))["configured"];
    EXPECT_EQ(written["batch"], "auto");
    EXPECT_TRUE(written["global_batch"].is_null());
  }
}

TEST(BatchReport, NamesTheBatchThatWasUsed) {
  FoundBatch far = found();
  far.most = 1000;
  EXPECT_EQ(numbers_named_in(batch_verdict(far).front()), (std::vector<double>{1000, 100}));
  expect_parts(batch_verdict(far).front(), {"--seconds"});
}

TEST(BatchReport, WritesJsonAndCharts) {
  const auto written = nlohmann::json::parse(batch_json(found(), {}));
  EXPECT_EQ(written["batches"].size(), 4u);
  EXPECT_EQ(written["batches"][3]["problem"], "out of memory");
  EXPECT_EQ(written["recommended"]["batch"], 32);
  EXPECT_EQ(written["gradient_noise"]["critical_batch"], 0);
  FoundBatch unreadable = found();
  unreadable.figures.back().problem = "cannot read caf\xe9";
  EXPECT_TRUE(nlohmann::json::accept(batch_json(unreadable, {}))) << "a name that is not UTF-8";
  expect_parts(batch_charts(found(), {{.batch = 8, .of_epochs = 0.5}}, "a <network>"),
               {"a &lt;network&gt;", ">Busy<", ">Device memory<", ">Test accuracy<", "<svg y=\"900\""});
}

}  // namespace
}  // namespace lockstep
