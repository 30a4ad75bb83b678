// SPDX-License-Identifier: Apache-2.0
#include "launch/train/evaluation/best_evaluation.h"

#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "launch/train/trainer.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

Evaluation evaluation(double accuracy, double loss = 1) { return {.loss = loss, .accuracy = accuracy}; }

StateCopy saved(BestEvaluation& best) {
  StateReader reader({});
  best.visit_state(reader);
  return reader.copy();
}

TEST(BestEvaluation, IsTheFirstAndEachImprovement) {
  BestEvaluation best({.keep = true});
  EXPECT_TRUE(best.add(evaluation(0.5), 1));
  EXPECT_FALSE(best.add(evaluation(0.5), 2)) << "an equal accuracy is no improvement";
  EXPECT_TRUE(best.add(evaluation(0.6), 3));
  EXPECT_FALSE(best.add(evaluation(0.55), 4));
  EXPECT_TRUE(best.add(evaluation(0.61), 5));
  EXPECT_FALSE(best.stops()) << "run.stop_after_epochs is not set";
}

TEST(BestEvaluation, CanUseTheLossWhichMustBeFinite) {
  BestEvaluation best({.stop_after_epochs = 2, .by = BestBy::loss});
  EXPECT_FALSE(best.add(evaluation(0.9, std::nan("")), 1));
  EXPECT_TRUE(best.add(evaluation(0.1, 2.0), 2));
  EXPECT_TRUE(best.add(evaluation(0.1, 1.5), 3));
  EXPECT_FALSE(best.add(evaluation(0.9, 1.6), 4));
  EXPECT_FALSE(best.stops());
  EXPECT_FALSE(best.add(evaluation(0.9, std::nan("")), 5));
  EXPECT_TRUE(best.stops());
  EXPECT_EQ(
      best.reason(),
      "training stops early after epoch 5: the test loss of epoch 3, 1.5, was not surpassed in 2 epochs "
      "(run.stop_after_epochs = 2)");
}

TEST(BestEvaluation, LossThatIsNotANumberIsNeverBestByAccuracy) {
  BestEvaluation best({.stop_after_epochs = 2, .keep = true});
  EXPECT_FALSE(best.add(evaluation(0.9, std::nan("")), 1));
  EXPECT_TRUE(best.add(evaluation(0.1), 2));
  EXPECT_FALSE(best.add(evaluation(0.9, std::nan("")), 3));
  EXPECT_FALSE(best.stops());
  EXPECT_FALSE(best.add(evaluation(0.9, std::nan("")), 4));
  EXPECT_TRUE(best.stops());
}

TEST(BestEvaluation, ReasonSaysThatNoLossWasANumber) {
  const BestSettings settings{.stop_after_epochs = 2};
  BestEvaluation first(settings);
  EXPECT_FALSE(first.add(evaluation(0.1, std::nan("")), 1));
  EXPECT_FALSE(first.stops());
  BestEvaluation best(settings);
  best.take(saved(first));
  EXPECT_FALSE(best.add(evaluation(0.1, std::nan("")), 2));
  EXPECT_TRUE(best.stops());
  expect_parts(best.reason(), {"after epoch 2", "NaN", "2 epochs", "run.stop_after_epochs = 2"});
  EXPECT_EQ(best.reason().find("epoch 0"), std::string::npos) << best.reason();
}

// A training resumed with another figure starts without earlier evaluations.
TEST(BestEvaluation, EpochsBeforeTheFirstEvaluationDoNotCount) {
  BestEvaluation best({.stop_after_epochs = 5});
  EXPECT_FALSE(best.add(evaluation(0.1, std::nan("")), 20));
  EXPECT_FALSE(best.stops());
  EXPECT_FALSE(best.add(evaluation(0.1, std::nan("")), 24));
  EXPECT_TRUE(best.stops());
}

// Slow improvements are kept, but do not prevent the stop.
TEST(BestEvaluation, SmallImprovementsAreKeptButDoNotPreventTheStop) {
  BestEvaluation best({.stop_after_epochs = 3, .stop_min_delta = 0.01, .keep = true});
  EXPECT_TRUE(best.add(evaluation(0.5), 1));
  EXPECT_TRUE(best.add(evaluation(0.504), 2));
  EXPECT_TRUE(best.add(evaluation(0.508), 3));
  EXPECT_FALSE(best.stops());
  EXPECT_TRUE(best.add(evaluation(0.5101), 4)) << "more than 0.01 above the first";
  EXPECT_FALSE(best.stops());
  EXPECT_TRUE(best.add(evaluation(0.515), 6));
  EXPECT_FALSE(best.stops());
  EXPECT_FALSE(best.add(evaluation(0.51), 7));
  EXPECT_TRUE(best.stops());
  EXPECT_EQ(best.reason(),
            "training stops early after epoch 7: the test accuracy of epoch 4, 51.01 %, was not surpassed by "
            "more than 1.00 % in 3 epochs (run.stop_after_epochs = 3)");
}

TEST(BestEvaluation, IsRestoredIfTheFigureIsTheSame) {
  const BestSettings settings{.stop_after_epochs = 2};
  BestEvaluation first(settings);
  first.add(evaluation(0.7), 1);
  first.add(evaluation(0.6), 2);
  BestEvaluation second(settings);
  EXPECT_TRUE(second.take(saved(first)));
  EXPECT_FALSE(second.add(evaluation(0.65), 3));
  EXPECT_TRUE(second.stops());
  BestEvaluation by_loss({.stop_after_epochs = 2, .by = BestBy::loss});
  EXPECT_FALSE(by_loss.take(saved(first)));
  EXPECT_TRUE(by_loss.add(evaluation(0.1, 5.0), 3));
  EXPECT_FALSE(by_loss.stops());
  BestEvaluation of_older(settings);
  EXPECT_TRUE(of_older.take({}));
  EXPECT_TRUE(of_older.add(evaluation(0.1), 3)) << "a checkpoint without these values";
}

}  // namespace
}  // namespace lockstep
