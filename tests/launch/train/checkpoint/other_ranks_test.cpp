// SPDX-License-Identifier: Apache-2.0
//
// Per-rank state of one number of ranks, redistributed to another number.
#include "launch/train/checkpoint/other_ranks.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <numeric>
#include <thread>

#include <gtest/gtest.h>

#include "launch/train/checkpoint/step_agreement.h"
#include "tests/comm/thread_ranks.h"

namespace lockstep {
namespace {

StateCopy::Tensor piece(const std::string& name, std::vector<float> values) {
  return {.name = name,
          .scope = StateScope::per_rank,
          .shape = {static_cast<std::int64_t>(values.size())},
          .values = std::move(values)};
}

ExchangeState place(const std::string& name, std::int64_t elements, OnOtherRanks how = OnOtherRanks::sum) {
  return {.name = name, .memory = {.data = nullptr, .shape = {elements}}, .on_other_ranks = how};
}

double sum_of(const std::vector<StateCopy::Tensor>& tensors, const std::string& part) {
  double sum = 0;
  for (const StateCopy::Tensor& tensor : tensors)
    if (tensor.name.find(part) != std::string::npos)
      sum = std::accumulate(tensor.values.begin(), tensor.values.end(), sum);
  return sum;
}

// Two ranks, each with all of w and half of v.
MergedExchange saved_by_two() {
  MergedExchange merged;
  merge(merged,
        std::vector{piece("w.residual", {1, 2, 3, 4}), piece("v.residual[0:3]", {1, 1, 1}),
                    piece("v.steps[0:3]", {9})},
        10);
  merge(merged,
        std::vector{piece("w.residual", {10, 20, 30, 40}), piece("v.residual[3:6]", {2, 2, 2}),
                    piece("v.steps[3:6]", {9})},
        10);
  return merged;
}

TEST(OtherRanks, KeepTheSumOfResiduals) {
  for (const int ranks : {1, 3, 4}) {
    std::mutex mutex;
    double w = 0, v = 0;
    run_thread_ranks(ranks, [&](Communicator& communicator) {
      // Every rank has all of w; the first also has all of v.
      std::vector<ExchangeState> mine = {place("w.residual[0:1]", 1), place("w.residual[1:4]", 3)};
      if (communicator.rank() == 0) {
        mine.push_back(place("v.residual", 6));
        mine.push_back(place("w.steps[0:4]", 1, OnOtherRanks::same));
      }
      const std::vector<StateCopy::Tensor> dealt = deal(saved_by_two(), mine, communicator);
      ASSERT_EQ(dealt.size(), mine.size());
      EXPECT_FLOAT_EQ(dealt[1].values[2], 44.0f / static_cast<float>(ranks));
      if (communicator.rank() == 0) {
        EXPECT_EQ(dealt[2].values, (std::vector<float>{1, 1, 1, 2, 2, 2}));
        EXPECT_EQ(dealt[3].values, std::vector<float>{9}) << "counts are not added up";
      }
      const std::lock_guard lock(mutex);
      w += sum_of(dealt, "w.residual");
      v += sum_of(dealt, "v.residual");
    });
    EXPECT_NEAR(w, 110, 1e-5) << ranks;
    EXPECT_EQ(v, 9) << ranks;
  }
}

TEST(OtherRanks, TensorsThatWereNotSavedAreLeftOut) {
  run_thread_ranks(2, [](Communicator& communicator) {
    const bool lacks = communicator.rank() == 1;
    const std::vector<ExchangeState> mine = {place("v.residual", 6),
                                             place(lacks ? "u.residual" : "w.residual", 4)};
    EXPECT_EQ(deal(saved_by_two(), mine, communicator).size(), lacks ? 1u : 2u);
  });
}

// One rank requests; all learn of it after the same step.
TEST(StepAgreement, InformsEveryRankAfterTheSameStep) {
  constexpr int kRanks = 3, kSteps = 40;
  std::vector<std::vector<int>> told(kRanks);
  run_thread_ranks(kRanks, [&](Communicator& communicator) {
    StepAgreement agreement(communicator);
    for (int step = 1; step <= kSteps; ++step) {
      StepAgreement::Wishes mine = {};
      if (communicator.rank() == 1 && step >= 7) mine[2] = 10;
      if (communicator.rank() == 2 && step >= 7) mine[2] = 12;
      float gradient = 1;  // like a step's sum: no rank ends it before all ranks have started it
      communicator.all_reduce(&gradient, 1, DType::f32, ReduceOp::sum);
      communicator.stream().synchronize();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // at most 20 steps between two exchanges
      if (const auto all = agreement.after_step(mine); all && (*all)[2] == 12)
        told[static_cast<std::size_t>(communicator.rank())].push_back(step);
    }
  });
  ASSERT_FALSE(told[0].empty());
  EXPECT_GT(told[0].front(), 7) << "a request of a step is known after the next step";
  EXPECT_EQ(told[1], told[0]);
  EXPECT_EQ(told[2], told[0]);
}

// Batches of an evaluation may be a thousand times as fast as steps.
TEST(StepAgreement, FastEvaluationsDelayNoRequestOfATraining) {
  run_thread_ranks(2, [](Communicator& communicator) {
    StepAgreement agreement(communicator);
    for (int batch = 0; batch < 3000; ++batch) agreement.after_evaluated_batch({});
    agreement.after_step({15, 0, 0, 0});
    EXPECT_EQ(agreement.after_step({}), (StepAgreement::Wishes{15, 0, 0, 0}));
  });
}

// At a common point all ranks know the current requests, without those that are pending.
TEST(StepAgreement, AtOnceUsesOnlyTheCurrentRequests) {
  run_thread_ranks(3, [](Communicator& communicator) {
    StepAgreement agreement(communicator);
    for (const int turn : {1, 2, 3}) {
      if (turn == 2) agreement.after_step({9, 0, 0, 0});
      EXPECT_EQ(agreement.at_once({0, 10 * turn + communicator.rank(), 0, 0}),
                (StepAgreement::Wishes{0, 10 * turn + 2, 0, 0}));
    }
  });
}

TEST(StepAgreement, SingleRankAgreesAtOnce) {
  const auto self = make_self_communicator();
  StepAgreement agreement(*self);
  EXPECT_EQ(agreement.after_step({0, 5, 0, 0}), (StepAgreement::Wishes{0, 5, 0, 0}));
}

}  // namespace
}  // namespace lockstep
