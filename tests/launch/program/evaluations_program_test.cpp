// SPDX-License-Identifier: Apache-2.0
//
// Program runs that depend on evaluations: which epochs have one, when training stops, which weights are
// kept, and evaluation of averaged weights.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/launch/program/program.h"
#include "tests/launch/program/run_json.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using EpochJson = nlohmann::json;
using EvaluationSettings = std::vector<std::string>;

EvaluationSettings joined(EvaluationSettings settings, const EvaluationSettings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

std::vector<EpochJson> epochs_of(const Workplace& workplace) { return metrics_of(workplace.path("run")); }

std::vector<EpochJson> trained_epochs(const Workplace& workplace, int ranks,
                                      const EvaluationSettings& settings, const std::string& flags = "") {
  const ProgramResult result = run_ranks(ranks, workplace.train(settings, flags));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return epochs_of(workplace);
}

EpochJson evaluation_of(const Workplace& workplace, const std::string& flags) {
  const ProgramResult result =
      run_shell(program("lockstep") + " eval " + workplace.path("config.toml").string() + " --json " + flags);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return json_lines_of(result).at(0);
}

// The weights after `steps` steps with these settings.
std::map<std::string, std::vector<float>> weights_after(const Workplace& workplace, int ranks, int steps,
                                                        const EvaluationSettings& settings) {
  const auto file = workplace.path("weights.safetensors");
  const ProgramResult result = run_ranks(
      ranks,
      workplace.train(joined(settings, {fmt::format("train.steps={}", steps)}), "--export " + file.string()));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return tensors_of(file);
}

TEST(Evaluations, RunAfterTheConfiguredEpochsAndChangeNothing) {
  const Workplace workplace("evaluate_every");
  const std::string every = digest_of(workplace, 2, {"train.epochs=5"});
  const auto all = epochs_of(workplace);
  EXPECT_FALSE(std::filesystem::exists(workplace.path("run/best.safetensors"))) << "run.keep_best is false";
  for (const auto& [setting, expected] : {std::pair{2, std::vector<int>{2, 4, 5}}, {7, {5}}}) {
    const EvaluationSettings settings = {"train.epochs=5", fmt::format("run.evaluate_every={}", setting)};
    EXPECT_EQ(digest_of(workplace, 2, settings), every) << setting;
    std::vector<int> evaluated;
    const auto lines = epochs_of(workplace);
    ASSERT_EQ(lines.size(), 5u);
    for (const EpochJson& line : lines) {
      EXPECT_EQ(line.contains("test_accuracy"), line.contains("test_loss")) << line;
      if (!line.contains("test_accuracy")) continue;
      evaluated.push_back(line["epoch"]);
      EXPECT_EQ(line["test_accuracy"], all[static_cast<std::size_t>(evaluated.back() - 1)]["test_accuracy"]);
    }
    EXPECT_EQ(evaluated, expected) << setting;
  }
}

// The last epoch is evaluated, wherever it ends.
TEST(Evaluations, LastEpochIsAlwaysEvaluated) {
  const Workplace workplace("evaluate_last");
  const auto lines =
      trained_epochs(workplace, 2, {"train.epochs=3", "train.steps=40", "run.evaluate_every=0"});
  ASSERT_EQ(lines.size(), 2u) << "of 32 and 8 steps";
  EXPECT_FALSE(lines[0].contains("test_accuracy")) << lines[0];
  EXPECT_TRUE(lines[1].contains("test_accuracy")) << lines[1];
}

// With this rate no weight changes, and no evaluation is better than the first.
const EvaluationSettings kStandstill = {"optimizer.learning_rate=1e-30", "train.epochs=10"};

TEST(Evaluations, TrainingStopsWithoutImprovement) {
  for (const auto& [ranks, by] : {std::pair{1, "accuracy"}, {2, "loss"}}) {
    const Workplace workplace("stops");
    const auto file = workplace.path("weights.safetensors");
    const ProgramResult result = run_ranks(
        ranks, workplace.train(
                   joined(kStandstill, {"run.stop_after_epochs=2", fmt::format("run.stop_metric={}", by)}),
                   "--export " + file.string()));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    const std::string reason = lines_naming(result.output, "run.stop_after_epochs");
    EXPECT_EQ(count(reason, "\n"), 1) << result.output;
    expect_parts(reason, {"epoch 3", "epoch 1", by});
    EXPECT_EQ(epochs_of(workplace).size(), 3u);
    EXPECT_FALSE(tensors_of(file).empty()) << "the requested file is written";
  }
}

TEST(Evaluations, EpochsCountWhetherOrNotTheyAreEvaluated) {
  const Workplace workplace("every_other");
  EXPECT_EQ(
      trained_epochs(workplace, 1, joined(kStandstill, {"run.stop_after_epochs=3", "run.evaluate_every=2"}))
          .size(),
      6u)
      << "epochs 2, 4 and 6";
}

TEST(Evaluations, ResumedTrainingKnowsTheBestEvaluation) {
  const Workplace workplace("stop_resumed");
  const EvaluationSettings settings =
      joined(kStandstill, {"run.stop_after_epochs=3", "run.checkpoint_every=1000"});
  ASSERT_EQ(trained_epochs(workplace, 2, joined(settings, {"train.steps=64"})).size(), 2u);
  EXPECT_EQ(trained_epochs(workplace, 2, settings, "--resume auto --resume-with train.steps").size(), 4u)
      << "of which the first is the best";
  const ProgramResult again = run_ranks(2, workplace.train(settings, "--resume auto"));
  EXPECT_EQ(again.exit_code, 0) << again.output;
  const std::string reason = lines_naming(again.output, "run.stop_after_epochs");
  EXPECT_EQ(count(reason, "\n"), 1) << again.output;
  expect_parts(reason, {"epoch 4", "epoch 1"});
  EXPECT_EQ(epochs_of(workplace).size(), 4u) << "training had stopped";
  EXPECT_EQ(
      trained_epochs(workplace, 2, joined(settings, {"run.stop_after_epochs=4"}), "--resume auto").size(),
      5u);
}

// A resumed training whose weight decay undoes the learning: the best evaluation is an earlier one.
TEST(Evaluations, BestNetworkIsKept) {
  for (const auto& [ranks, by] : {std::pair{2, "accuracy"}, {1, "loss"}}) {
    const Workplace workplace("keep_best");
    const EvaluationSettings settings = {"run.keep_best=true", "run.checkpoint_every=1000",
                                         fmt::format("run.stop_metric={}", by)};
    trained_epochs(workplace, ranks, joined(settings, {"train.epochs=2"}));
    const auto lines =
        trained_epochs(workplace, ranks, joined(settings, {"train.epochs=4", "optimizer.weight_decay=5"}),
                       "--resume auto --resume-with train.epochs --resume-with optimizer.weight_decay");
    ASSERT_EQ(lines.size(), 4u);
    double most = 0, least = 1e9;
    for (const EpochJson& line : lines) {
      most = std::max(most, line["test_accuracy"].get<double>());
      least = std::min(least, line["test_loss"].get<double>());
    }
    ASSERT_LT(lines.back()["test_accuracy"].get<double>(), most);
    ASSERT_GT(lines.back()["test_loss"].get<double>(), least);
    const EpochJson best =
        evaluation_of(workplace, "--init " + workplace.path("run/best.safetensors").string());
    if (by == std::string("accuracy")) {
      EXPECT_EQ(best["test_accuracy"], most);
    } else {
      EXPECT_NEAR(best["test_loss"].get<double>(), least, 1e-6);
    }
  }
}

// A failed write of the averaged weights restores training's own weights.
TEST(Evaluations, UnwritableBestNetworkNeitherEndsNorChangesTraining) {
  const Workplace workplace("best_average");
  const EvaluationSettings settings = {"train.epochs=3", "train.ema_decay=0.9"};
  const std::string expected = digest_of(workplace, 2, settings);
  std::filesystem::remove_all(workplace.path("run"));
  std::filesystem::create_directories(workplace.path("run/best.safetensors/in_the_way"));
  const std::string digest = workplace.path("digest").string();
  const ProgramResult result =
      run_ranks(2, workplace.train(joined(settings, {"run.keep_best=true"}), "--digest " + digest));
  EXPECT_EQ(result.exit_code, exit_code::io) << result.output;
  const std::string warnings = lines_naming(result.output, "warning", "best.safetensors");
  EXPECT_EQ(count(warnings, "\n"), 1) << result.output;
  EXPECT_EQ(epochs_of(workplace).size(), 3u);
  EXPECT_EQ(text_of(digest), expected);
}

// The best network of a finished training is missing: a repetition of the command must not succeed.
TEST(Evaluations, ResumedTrainingMissesTheBestNetworkOfBefore) {
  const Workplace workplace("best_missing");
  const EvaluationSettings settings = {"train.epochs=2", "run.checkpoint_every=1000"};
  const EvaluationSettings keeps = joined(settings, {"run.keep_best=true"});
  const auto obstacle = workplace.path("run/best.safetensors");
  std::filesystem::create_directories(obstacle / "in_the_way");
  ASSERT_EQ(run_ranks(2, workplace.train(keeps)).exit_code, exit_code::io);
  std::filesystem::remove_all(obstacle);
  const ProgramResult again = run_ranks(2, workplace.train(keeps, "--resume auto"));
  EXPECT_EQ(again.exit_code, exit_code::io) << again.output;
  expect_parts(again.output, {"best.safetensors"});

  const Workplace later("best_later");
  ASSERT_EQ(run_ranks(1, later.train(settings)).exit_code, 0);
  const ProgramResult without = run_ranks(1, later.train(keeps, "--resume auto"));
  EXPECT_EQ(without.exit_code, exit_code::io) << without.output;

  const Workplace kept("best_kept");
  ASSERT_EQ(run_ranks(1, kept.train(keeps)).exit_code, 0);
  const ProgramResult there = run_ranks(1, kept.train(keeps, "--resume auto"));
  EXPECT_EQ(there.exit_code, 0) << there.output;
  std::filesystem::remove(kept.path("run/best.safetensors"));
  const ProgramResult gone = run_ranks(1, kept.train(keeps, "--resume auto"));
  EXPECT_EQ(gone.exit_code, exit_code::io) << gone.output;
}

// Epoch 1 is the best by accuracy; the resumed training keeps the best by loss.
TEST(Evaluations, BestNetworkByTheOtherFigureIsRenamed) {
  const Workplace workplace("best_other");
  const EvaluationSettings settings = {"run.keep_best=true", "run.checkpoint_every=1000"};
  trained_epochs(workplace, 1, joined(settings, {"train.epochs=1"}));
  const std::string first = text_of(workplace.path("run/best.safetensors"));
  const ProgramResult resumed =
      run_ranks(1, workplace.train(joined(settings, {"train.epochs=3", "run.stop_metric=loss"}),
                                   "--resume auto --resume-with train.epochs"));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_EQ(count(lines_naming(resumed.output, "warning", "run.stop_metric"), "\n"), 1) << resumed.output;
  EXPECT_TRUE(text_of(workplace.path("run/best.1.safetensors")) == first);
  EXPECT_TRUE(std::filesystem::exists(workplace.path("run/best.safetensors")));
  EXPECT_FALSE(std::filesystem::exists(workplace.path("run/best.2.safetensors"))) << "renamed once";
}

// Another training of the folder replaced the file: the loss of epoch 1 stays the best of the second one.
TEST(Evaluations, BestNetworkOfAnAbandonedTrainingIsNotTaken) {
  const Workplace workplace("best_abandoned");
  const EvaluationSettings settings = {"train.epochs=3", "run.keep_best=true",      "run.stop_metric=loss",
                                       "run.keep=9",     "run.checkpoint_every=64", "model.batch_norm=false"};
  ASSERT_EQ(run_ranks(1, workplace.train(joined(settings, {"train.until_epoch=1"}))).exit_code, 0);
  ASSERT_EQ(run_ranks(1, workplace.train(settings, "--resume auto")).exit_code, 0);
  const auto epochs = json_lines_of(workplace.path("run/metrics.jsonl"));
  ASSERT_LT(epochs.back()["test_loss"], epochs.front()["test_loss"]);
  const ProgramResult again =
      run_ranks(1, workplace.train(joined(settings, {"optimizer.learning_rate=1e-30"}),
                                   "--resume-with optimizer.learning_rate --resume " +
                                       workplace.path("run/checkpoints/step-000000064").string()));
  EXPECT_EQ(again.exit_code, exit_code::io) << again.output;
  expect_parts(again.output, {"best.safetensors", "epoch 1"});
}

// Computes the average from each step's weights, which another training exports.
TEST(WeightAverage, IsExportedAndEvaluated) {
  const Workplace workplace("ema");
  const EvaluationSettings settings = {"optimizer.learning_rate=0.2"};
  auto expected = weights_after(workplace, 1, 1, {"optimizer.learning_rate=1e-30"});
  std::map<std::string, std::vector<float>> plain;
  for (int step = 1; step <= 4; ++step) {
    const double decay = std::min(0.3, (1.0 + step) / (10.0 + step));
    plain = weights_after(workplace, 1, step, settings);
    for (const auto& [name, values] : plain)
      for (std::size_t i = 0; i < values.size(); ++i)
        expected[name][i] += static_cast<float>(1 - decay) * (values[i] - expected[name][i]);
  }
  const EpochJson plain_line = epochs_of(workplace).back();
  const auto average = weights_after(workplace, 1, 4, joined(settings, {"train.ema_decay=0.3"}));
  const EpochJson line = epochs_of(workplace).back();
  ASSERT_EQ(average.size(), expected.size());
  for (const auto& [name, values] : average)
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(values[i], expected.at(name)[i], 1e-6) << name << " " << i;
  const EpochJson found =
      evaluation_of(workplace, "--init " + workplace.path("weights.safetensors").string());
  EXPECT_NEAR(found["test_loss"].get<double>(), line["test_loss"].get<double>(), 1e-6);
  EXPECT_EQ(found["test_accuracy"], line["test_accuracy"]);
  EXPECT_NE(plain.at("fc1.weight"), average.at("fc1.weight"));
  EXPECT_EQ(plain_line["train_loss"], line["train_loss"]) << "training continues with the raw weights";
}

// A checkpoint contains the weights and their average, and the reported values are the same.
TEST(WeightAverage, ResumesBitForBitAndIsReadByEval) {
  for (const EvaluationSettings& way : {EvaluationSettings{},
                                        {"train.precision=fp16", "train.loss_scale=1e9",
                                         "train.loss_scale_interval=20", "train.staleness=1"}}) {
    const Workplace workplace("ema_resumed");
    const EvaluationSettings settings =
        joined(joined({"train.epochs=2", "train.ema_decay=0.95", "run.checkpoint_every=1000",
                       "run.keep_best=true", "kernels.choose=direct"},
                      way),
               {"optimizer.learning_rate=0.1"});
    const std::string whole = digest_of(workplace, 2, settings);
    const EpochJson expected = epochs_of(workplace).back();
    std::string of_checkpoint = "--resume auto --set train.accumulation=2";  // for the batch of 2 ranks
    for (const std::string& each : settings) of_checkpoint += " --set " + each;
    if (way.empty()) {
      EXPECT_EQ(evaluation_of(workplace, of_checkpoint)["test_accuracy"], expected["test_accuracy"]);
    }
    ASSERT_EQ(run_ranks(2, workplace.train(joined(settings, {"train.steps=45"}))).exit_code, 0);
    const auto file = workplace.path("digest_resumed");
    const ProgramResult resumed = run_ranks(
        2, workplace.train(settings, "--resume auto --resume-with train.steps --digest " + file.string()));
    ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
    EXPECT_EQ(text_of(file), whole);
    EXPECT_EQ(epochs_of(workplace).back()["test_loss"], expected["test_loss"]);
  }
  const Workplace workplace("ema_digest");
  const auto digest_with = [&](const char* decay) {
    return digest_of(workplace, 1, {"train.steps=2", decay});
  };
  EXPECT_NE(digest_with("train.ema_decay=0.1"), digest_with("train.ema_decay=0.9"))
      << "the average is part of the digest";
}

// With a learning rate near 0 the weights, and so their average, stay those of the checkpoint.
TEST(WeightAverage, BeginsWithTheWeightsOfACheckpointWithoutOne) {
  const Workplace workplace("ema_begun");
  const EvaluationSettings settings = {"run.checkpoint_every=1000", "optimizer.learning_rate=0.2"};
  const auto saved = weights_after(workplace, 1, 5, settings);
  const auto file = workplace.path("average.safetensors");
  const ProgramResult resumed = run_ranks(
      1, workplace.train(
             joined(settings, {"train.steps=8", "optimizer.learning_rate=1e-30", "train.ema_decay=0.5"}),
             "--resume auto --resume-with train.steps --resume-with optimizer.learning_rate --resume-with "
             "train.ema_decay --export " +
                 file.string()));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_EQ(count(resumed.output, "train.ema_decay"), 1) << resumed.output;
  for (const auto& [name, values] : tensors_of(file))
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(values[i], saved.at(name)[i], 1e-6) << name << " " << i;
}

TEST(WeightAverage, IsPartOfThePlan) {
  const Workplace workplace("ema_plan");
  const ProgramResult with = run_shell(program("lockstep") + " plan " +
                                       workplace.path("config.toml").string() + " --set train.ema_decay=0.9");
  EXPECT_EQ(with.exit_code, 0) << with.output;
  const std::string part = lines_naming(with.output, "train.ema_decay");
  EXPECT_EQ(count(part, "\n"), 1) << with.output;
  expect_parts(part, {"average", " MiB"});
}

TEST(ScaledRate, FollowsTheSamplesOfAllRanks) {
  const Workplace workplace("scaled_rate");
  const EvaluationSettings settings = {"optimizer.scale_batch=4", "schedule.warmup_epochs=0.5"};
  const std::string digest = workplace.path("scaled").string();
  const ProgramResult linear =
      run_ranks(2, workplace.train(joined(settings, {"optimizer.scale_rate=linear"}), "--digest " + digest));
  EXPECT_EQ(linear.exit_code, 0) << linear.output;
  const std::string scaling = lines_naming(linear.output, "optimizer.scale_rate");
  EXPECT_EQ(count(scaling, "\n"), 1) << linear.output;
  const std::vector<double> numbers = numbers_named_in(scaling);
  for (const double number : {0.08, 0.02, 16.0, 4.0})
    EXPECT_EQ(std::ranges::count(numbers, number), 1) << number << ": " << scaling;
  EXPECT_DOUBLE_EQ(epochs_of(workplace).back()["learning_rate"].get<double>(), 0.08);
  const std::string scaled = text_of(digest);
  const ProgramResult none =
      run_ranks(2, workplace.train(joined(settings, {"optimizer.learning_rate=0.08"}), "--digest " + digest));
  EXPECT_EQ(none.exit_code, 0) << none.output;
  EXPECT_EQ(text_of(digest), scaled);
  EXPECT_EQ(count(none.output, "optimizer.scale_rate"), 0) << none.output;
}

// The length of a step is the rate times the gradient norm.
TEST(ClippedGradients, HaveTheLimitedNorm) {
  const Workplace workplace("clipped");
  const EvaluationSettings settings = {"optimizer.momentum=0", "run.log_every=1"};
  const auto before = weights_after(workplace, 2, 1, {"optimizer.learning_rate=1e-30"});
  const auto norm_told = [&] {
    return json_lines_of(workplace.path("run/steps.jsonl")).at(0).at("gradient_norm").get<double>();
  };
  const auto went = [&](const std::map<std::string, std::vector<float>>& after) {
    double squares = 0;
    for (const auto& [name, values] : after)
      for (std::size_t i = 0; i < values.size(); ++i)
        squares += std::pow(double{values[i]} - double{before.at(name)[i]}, 2);
    return std::sqrt(squares) / 0.02;
  };
  const double plain = went(weights_after(workplace, 2, 1, settings));
  const double norm = norm_told();
  EXPECT_NEAR(plain, norm, 1e-3 * norm);
  ASSERT_GT(norm, 0.1);
  EXPECT_NEAR(went(weights_after(workplace, 2, 1, joined(settings, {"optimizer.clip_norm=0.05"}))), 0.05,
              1e-4);
  EXPECT_NEAR(norm_told(), norm, 1e-6 * norm) << "the norm before clipping";
}

}  // namespace
}  // namespace lockstep
