// SPDX-License-Identifier: Apache-2.0
//
// The program with run.metrics and run.metrics_every: the same counts on any number of ranks, the lines of
// evaluations.jsonl, and no effect on training.
#include <numeric>
#include <regex>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/launch/program/program.h"
#include "tests/launch/program/run_json.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using MetricSettings = std::vector<std::string>;

constexpr int kTestSamples = 103;  // divisible by no number of ranks

// A dataset with this number of classes: a Workplace's dataset has too few for top5.
MetricSettings of_classes(int classes, const MetricSettings& more) {
  MetricSettings settings = {"data.format=synthetic",
                             fmt::format("data.synthetic.classes={}", classes),
                             "data.synthetic.height=12",
                             "data.synthetic.width=12",
                             "data.synthetic.channels=1",
                             "data.synthetic.train_samples=512",
                             fmt::format("data.synthetic.test_samples={}", kTestSamples)};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}
MetricSettings of_ten_classes(const MetricSettings& more) { return of_classes(10, more); }

nlohmann::json trained(const Workplace& workplace, int ranks, const MetricSettings& settings) {
  const ProgramResult result = run_ranks(ranks, workplace.train(settings));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  return last_metrics_of(workplace.path("run"));
}

// With train.reproducible the evaluated networks are identical.
TEST(Metrics, AreTheSameOnAnyNumberOfRanks) {
  const Workplace workplace("metrics");
  nlohmann::json alone;
  for (const int ranks : {1, 4}) {
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    const nlohmann::json line =
        trained(workplace, ranks,
                of_ten_classes({"train.reproducible=true", fmt::format("train.accumulation={}", 4 / ranks),
                                "train.steps=2", "run.metrics=top5, f1, confusion"}));
    if (ranks == 1) alone = line;
    for (const char* name : {"test_accuracy", "top5", "f1_macro", "f1_by_class", "precision_by_class",
                             "recall_by_class", "samples_by_class", "confusion"}) {
      ASSERT_TRUE(line.contains(name)) << line;
      EXPECT_EQ(line[name], alone[name]) << name;
    }
    EXPECT_GT(line["metrics_seconds"], 0);
    EXPECT_GT(line["evaluation_seconds"], line["metrics_seconds"]);
    const auto confusion = line["confusion"].get<std::vector<std::vector<int>>>();
    int samples = 0, right = 0;
    for (std::size_t label = 0; label < confusion.size(); ++label) {
      const int of_label = std::accumulate(confusion[label].begin(), confusion[label].end(), 0);
      EXPECT_EQ(line["samples_by_class"][label], of_label) << label;
      samples += of_label;
      right += confusion[label][label];
    }
    EXPECT_EQ(samples, kTestSamples) << "each sample counts once, and padding does not";
    EXPECT_DOUBLE_EQ(line["test_accuracy"], static_cast<double>(right) / kTestSamples);
    EXPECT_GE(line["top5"], line["test_accuracy"]);
    EXPECT_LT(line["test_accuracy"], 1) << "some predictions are wrong";
  }
}

// With per-rank running statistics. cross_barrier_test.cpp and continued_training_test.cpp evaluate with
// other step ends.
TEST(Metrics, DoNotChangeTheTraining) {
  const Workplace workplace("metrics_digest");
  MetricSettings settings =
      of_ten_classes({"model.name=cnn", "model.batch_norm=true", "train.epochs=2", "kernels.choose=direct",
                      "train.threads=1", "data.horizontal_flip=true", "train.staleness=1"});
  const std::string plain = digest_of(workplace, 2, settings);
  ASSERT_FALSE(plain.empty());
  settings.insert(settings.end(), {"run.metrics=top5,f1,confusion", "run.metrics_every=5"});
  EXPECT_EQ(digest_of(workplace, 2, settings), plain);
}

TEST(Metrics, AreReportedWithinAnEpoch) {
  const Workplace workplace("metrics_within");
  // Epochs of 32 steps on two ranks.
  const MetricSettings settings =
      of_ten_classes({"train.epochs=2", "run.metrics=top5", "run.metrics_every=10"});
  const ProgramResult result = run_ranks(2, workplace.train(settings));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  const auto lines = json_lines_of(workplace.path("run/evaluations.jsonl"));
  std::vector<int> steps, epochs;
  double seconds = 0;
  for (const nlohmann::json& line : lines) {
    steps.push_back(line["step"]);
    epochs.push_back(line["epoch"]);
    EXPECT_TRUE(line.contains("test_loss") && line.contains("test_accuracy") && line.contains("top5"));
    EXPECT_GE(line["seconds"], line["metrics_seconds"]);
    seconds += line["seconds"].get<double>();
  }
  EXPECT_EQ(steps, (std::vector<int>{10, 20, 30, 40, 50, 60}));
  EXPECT_EQ(epochs, (std::vector<int>{1, 1, 1, 2, 2, 2}));
  double within = 0;
  for (const nlohmann::json& line : metrics_of(workplace.path("run"))) {
    EXPECT_EQ(line["evaluations_within"]["count"], 3);
    EXPECT_GE(line["evaluation_seconds"], line["evaluations_within"]["seconds"]);
    within += line["evaluations_within"]["seconds"].get<double>();
    double account = 0;
    for (const auto& [phase, part] : line["account"].items()) account += part.get<double>();
    EXPECT_NEAR(account, line["train_seconds"].get<double>(), 1e-6) << "evaluations are not part of it";
  }
  EXPECT_GE(within, seconds);
}

// A checkpoint precedes the evaluation of its step.
TEST(Metrics, AreReportedOnceAfterAResume) {
  const Workplace workplace("metrics_resumed");
  const MetricSettings settings = of_ten_classes({"train.epochs=2", "run.metrics=top5", "run.metrics_every=5",
                                                  "run.checkpoint_every=20", "run.keep=1000"});
  ASSERT_EQ(run_ranks(2, workplace.train(settings)).exit_code, 0);
  const auto whole = json_lines_of(workplace.path("run/evaluations.jsonl"));
  ASSERT_FALSE(whole.empty());
  std::filesystem::path checkpoint;
  for (const auto& entry : std::filesystem::directory_iterator(workplace.path("run/checkpoints")))
    if (entry.path().filename().string().ends_with("40")) checkpoint = entry.path();
  ASSERT_FALSE(checkpoint.empty());
  const ProgramResult again = run_ranks(2, workplace.train(settings, "--resume " + checkpoint.string()));
  ASSERT_EQ(again.exit_code, 0) << again.output;
  const auto lines = json_lines_of(workplace.path("run/evaluations.jsonl"));
  ASSERT_EQ(lines.size(), whole.size());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    for (const char* name : {"step", "epoch", "test_loss", "test_accuracy", "top5"})
      EXPECT_EQ(lines[i][name], whole[i][name]) << i;
  }
}

TEST(Metrics, TooFewClassesAreRefusedAndTooManyOmitTheMatrix) {
  const Workplace workplace("metrics_classes");
  const MetricSettings settings = {"train.steps=2", "run.metrics=top5 f1 confusion"};
  expect_failure(run_shell(workplace.train(of_classes(5, settings))), exit_code::config,
                 {"run.metrics", "top5", "5 classes"});
  const ProgramResult result = run_shell(workplace.train(of_classes(101, settings)));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  const std::string told = lines_naming(result.output, "confusion");
  EXPECT_EQ(count(told, "\n"), 1) << result.output;
  expect_parts(told, {"run.metrics", "101"});
  EXPECT_TRUE(std::regex_search(result.output, std::regex(R"(\btop5 [0-9.]+[^\n]*\bf1 [0-9.]+)")))
      << result.output;
  const nlohmann::json line = last_metrics_of(workplace.path("run"));
  EXPECT_TRUE(line.contains("top5") && !line.contains("confusion")) << line;
}

}  // namespace
}  // namespace lockstep
