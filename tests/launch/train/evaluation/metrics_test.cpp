// SPDX-License-Identifier: Apache-2.0
#include "launch/train/evaluation/metrics.h"

#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "launch/observe/run_files/metric_lines.h"
#include "launch/observe/run_files/report_json.h"

namespace lockstep {
namespace {

using Words = std::vector<std::string>;

TEST(Metrics, AreSeparatedByCommasOrSpaces) {
  EXPECT_EQ(listed_words("none"), Words{});
  EXPECT_EQ(listed_words("top5"), Words{"top5"});
  EXPECT_EQ(listed_words(" top5, f1 confusion,"), (Words{"top5", "f1", "confusion"}));
  EXPECT_FALSE(metric_choice("none").any());
  const MetricChoice choice = metric_choice("confusion, top5");
  EXPECT_TRUE(choice.top5);
  EXPECT_TRUE(choice.confusion);
  EXPECT_FALSE(choice.f1);
}

// Labels 0 0 0 0 1 1 1 2 2 3, no 4 or 5; predictions 0 0 0 1 1 0 - 2 2 4, where "-" is no prediction.
//   class 0: 3 of 4 found, 3 of 4 predictions right: all three 3/4
//   class 1: 1 of 3 found, 1 of 2 predictions right: recall 1/3, precision 1/2, F1 2 * 1 / (3 + 2)
//   class 2: all of both
//   class 3: 0 of 1, never predicted: precision 0 / 0, which is 0
//   class 4: no sample, predicted once: recall 0 / 0, which is 0
//   class 5: neither
TEST(Metrics, F1CombinesPrecisionAndRecall) {
  const std::vector<std::int64_t> by_class = {4, 3, 2, 1, 0, 0,   // samples
                                              4, 2, 2, 0, 1, 0,   // predictions
                                              3, 1, 2, 0, 0, 0};  // right
  const std::vector<ClassScore> scores = class_scores(by_class);
  const double precision[] = {0.75, 0.5, 1, 0, 0, 0}, recall[] = {0.75, 1.0 / 3, 1, 0, 0, 0},
               f1[] = {0.75, 0.4, 1, 0, 0, 0};
  ASSERT_EQ(scores.size(), 6u);
  for (std::size_t k = 0; k < scores.size(); ++k) {
    EXPECT_DOUBLE_EQ(scores[k].precision, precision[k]) << k;
    EXPECT_DOUBLE_EQ(scores[k].recall, recall[k]) << k;
    EXPECT_DOUBLE_EQ(scores[k].f1, f1[k]) << k;
    EXPECT_EQ(scores[k].occurs, k != 5) << k;
  }
  EXPECT_DOUBLE_EQ(macro_f1(scores), (0.75 + 0.4 + 1) / 5) << "the mean over the classes that occur";
  EXPECT_EQ(macro_f1({}), 0);
  const double iou[] = {3.0 / 5, 1.0 / 4, 1, 0, 0, 0};  // of labels and predictions together
  for (std::size_t k = 0; k < scores.size(); ++k) EXPECT_DOUBLE_EQ(scores[k].iou, iou[k]) << k;
  EXPECT_DOUBLE_EQ(mean_iou(scores), (0.6 + 0.25 + 1) / 5);
}

EvaluationMetrics of_two_classes() {
  const std::vector<ClassScore> scores = class_scores({4, 2, 3, 3, 3, 2});
  return {.top5 = 0.931,
          .f1_macro = macro_f1(scores),
          .by_class = scores,
          .confusion = {3, 1, 0, 2},
          .classes = 2};
}

TEST(Metrics, AreWrittenUnderTheirNames) {
  nlohmann::ordered_json line;
  add_metrics(of_two_classes(), line);
  EXPECT_EQ(line["top5"], 0.931);
  EXPECT_DOUBLE_EQ(line["f1_macro"], (6.0 / 7 + 4.0 / 5) / 2);
  EXPECT_EQ(line["precision_by_class"], nlohmann::json({1.0, 2.0 / 3}));
  EXPECT_EQ(line["recall_by_class"], nlohmann::json({0.75, 1.0}));
  EXPECT_EQ(line["f1_by_class"], nlohmann::json({6.0 / 7, 4.0 / 5}));
  EXPECT_EQ(line["confusion"], nlohmann::json::parse("[[3, 1], [0, 2]]"));
  std::vector<std::string> parts;
  add_metrics(of_two_classes(), parts);
  EXPECT_EQ(parts, (std::vector<std::string>{"top5 93.10 %", "f1 0.829"}));
  nlohmann::ordered_json top5_alone;
  add_metrics({.top5 = 0.5}, top5_alone);
  EXPECT_EQ(top5_alone.size(), 1u);
  nlohmann::ordered_json iou_alone;
  add_metrics({.iou_mean = 0.5, .iou_by_class = {0.25, 0.75}}, iou_alone);
  EXPECT_EQ(iou_alone.dump(), R"({"iou_mean":0.5,"iou_by_class":[0.25,0.75]})");
}

TEST(Metrics, EvaluationWithinAnEpochIsOneLine) {
  EvaluationRecord line{
      .epoch = 2, .step = 20, .evaluation = {.loss = std::nan(""), .accuracy = 0.5}, .seconds = 0.25};
  EXPECT_EQ(json_of(line).dump(),
            R"({"epoch":2,"step":20,"test_loss":null,"test_accuracy":0.5,"seconds":0.25})");
  line.evaluation.metrics = EvaluationMetrics{.top5 = 0.75, .seconds = 0.125};
  EXPECT_EQ(
      json_of(line).dump(),
      R"({"epoch":2,"step":20,"test_loss":null,"test_accuracy":0.5,"top5":0.75,"seconds":0.25,"metrics_seconds":0.125})");
}

TEST(Metrics, NoticeableCostIsReported) {
  EpochRecord epoch{.train_seconds = 8, .evaluation_seconds = 2, .metrics_seconds = 0.2};
  EvaluationMetrics& metrics = epoch.evaluation.emplace().metrics.emplace();
  metrics.by_class.resize(1);
  EXPECT_EQ(price_of_metrics(epoch), Words{}) << "2 % is not reported";
  epoch.metrics_seconds = 0.41;
  metrics.confusion = {1};
  EXPECT_EQ(price_of_metrics(epoch),
            Words{"metrics took 4.1 % of the epoch: leaving f1, confusion out saves that"});
  epoch.metrics_seconds = 0;
  epoch.within_seconds = 1.5;
  EXPECT_EQ(price_of_metrics(epoch),
            Words{"evaluations took 20.0 % of the epoch: run.metrics_every=0 saves 15.0 %"});
  EXPECT_EQ(price_of_metrics({}), Words{}) << "an epoch without time";
}

}  // namespace
}  // namespace lockstep
