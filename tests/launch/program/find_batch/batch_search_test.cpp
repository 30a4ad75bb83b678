// SPDX-License-Identifier: Apache-2.0
#include "launch/program/find_batch/batch_search.h"

#include <cmath>
#include <functional>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

constexpr double kPlenty = 1e9;

using Rate = std::function<double(double batch)>;

// The measurement of a batch takes the time of some steps with it.
BatchFigure measured_at(std::int64_t batch, const Rate& rate) {
  const auto samples = static_cast<double>(batch);
  return {.batch = batch, .samples_per_second = rate(samples), .seconds = 1 + samples / 100};
}

std::vector<std::int64_t> searched(const BatchLimits& limits, const Rate& rate, double seconds = kPlenty,
                                   std::int64_t most_in_memory = 1 << 30) {
  BatchSearch search(limits);
  std::vector<std::int64_t> order;
  double spent = 0;
  while (const auto batch = search.next(seconds - spent)) {
    order.push_back(*batch);
    BatchFigure figure = measured_at(*batch, rate);
    if (*batch > most_in_memory) figure = {.batch = *batch, .problem = "out of memory"};
    search.tell(figure);
    spent += figure.seconds;
    if (order.size() > 100) break;
  }
  return order;
}

// Half of the peak at a batch of 16.
double saturating(double batch) { return 1000 * batch / (batch + 16); }

using Batches = std::vector<std::int64_t>;

TEST(BatchSearch, DoublesUntilThroughputStopsRisingThenSearchesBelow) {
  EXPECT_EQ(searched({.start = 128, .most = 100'000}, saturating), (Batches{128, 256, 512, 1024, 2048, 384}));
}

TEST(BatchSearch, HalvesWhileThroughputStaysHigh) {
  const auto flat = [](double batch) { return batch < 6 ? 500.0 : 1000.0; };
  EXPECT_EQ(searched({.start = 32, .most = 64}, flat), (Batches{32, 64, 16, 8, 4, 6}));
}

TEST(BatchSearch, FindsTheSmallestFastBatch) {
  for (const std::int64_t start : {1, 8, 100, 3000}) {
    BatchSearch search({.start = start, .most = 4096});
    while (const auto batch = search.next(kPlenty)) search.tell(measured_at(*batch, saturating));
    const BatchFigure* fast = smallest_fast_batch(search.figures());
    const double peak = fastest_batch(search.figures())->samples_per_second;
    EXPECT_GE(saturating(static_cast<double>(fast->batch)), 0.95 * peak) << start;
    EXPECT_LT(saturating(static_cast<double>(fast->batch) / 2), 0.95 * peak) << start;
  }
}

TEST(BatchSearch, StopsAtTheLargestBatchThatFits) {
  EXPECT_EQ(searched({.start = 8, .most = 20}, [](double batch) { return batch; }), (Batches{8, 16, 12}));
  EXPECT_EQ(searched(
                {.start = 8, .most = 100}, [](double batch) { return batch; }, kPlenty, 40),
            (Batches{8, 16, 32, 64, 24}));
}

TEST(BatchSearch, StartsWithABatchThatFits) {
  EXPECT_EQ(searched({.start = 64, .most = 8}, [](double batch) { return batch; }), (Batches{8, 4, 6}));
  EXPECT_EQ(searched(
                {.start = 64, .most = 64}, [](double batch) { return batch; }, kPlenty, 10),
            (Batches{64, 32, 16, 8, 4, 6}));
  EXPECT_TRUE(searched({.start = 4, .most = 0}, saturating).empty());
  EXPECT_EQ(searched({.start = 4, .most = 4}, saturating, kPlenty, 0), (Batches{4, 2, 1}));
}

TEST(BatchSearch, MeasuresOnlyMultiples) {
  for (const std::int64_t batch : searched({.start = 10, .least = 2, .most = 50}, saturating))
    EXPECT_EQ(batch % 2, 0) << batch;
}

TEST(BatchSearch, LargestBatchIsBelowOneThatDidNotFit) {
  BatchSearch search({.start = 64, .least = 2, .most = 100, .multiple = 2});
  EXPECT_EQ(search.most(), 100);
  search.tell({.batch = 64, .problem = "out of memory"});
  EXPECT_EQ(search.most(), 62) << "a multiple of 2";
}

// Kernels that compute eight samples in the time of one.
double in_eights(double batch) { return 1000 * batch / (8 * std::ceil(batch / 8)); }

TEST(BatchSearch, MeasuresMultiplesThatSuitTheKernels) {
  EXPECT_EQ(searched({.start = 100, .most = 4096, .multiple = 8}, saturating),
            (Batches{100, 200, 400, 800, 1600, 296}));
  EXPECT_EQ(searched({.start = 100, .most = 333, .multiple = 8}, saturating), (Batches{100, 200, 144}));
  EXPECT_EQ(searched({.start = 64, .most = 37, .multiple = 8}, saturating), (Batches{32, 16, 24}))
      << "the first batch does not fit";
  EXPECT_EQ(searched({.start = 3, .most = 64, .multiple = 8}, saturating),
            (Batches{3, 6, 8, 16, 32, 64, 48}));
}

TEST(BatchSearch, MeasuresTheMultiplesNextToAnotherFirstBatch) {
  const auto found = [](std::int64_t start, std::int64_t most) {
    BatchSearch search({.start = start, .most = most, .multiple = 8});
    while (const auto batch = search.next(kPlenty)) search.tell(measured_at(*batch, in_eights));
    return search;
  };
  EXPECT_NE(figure_of_batch(found(31, 47).figures(), 32), nullptr);
  EXPECT_EQ(figure_of_batch(found(31, 31).figures(), 32), nullptr) << "32 does not fit";
  EXPECT_EQ(smallest_fast_batch(found(9, 15).figures())->batch, 8) << "9 takes the time of 16";
  EXPECT_EQ(figure_of_batch(found(32, 63).figures(), 40), nullptr) << "32 is a multiple";
}

TEST(BatchSearch, EndsAtItsTimeLimit) {
  const Batches all = searched({.start = 128, .most = 100'000}, saturating);
  const Batches some = searched({.start = 128, .most = 100'000}, saturating, 20);
  EXPECT_LT(some.size(), all.size());
  EXPECT_EQ(some.front(), 128);
  for (const std::int64_t batch : some) EXPECT_LT(batch, 1024) << "takes 11 seconds";
}

}  // namespace
}  // namespace lockstep
