// SPDX-License-Identifier: Apache-2.0
//
// Batch norm's running statistics on several ranks against a reference. The normalisation is the first layer,
// so its input depends only on the images and their order.
#include <array>

#include <gtest/gtest.h>

#include "data/sample_order.h"
#include "launch/train/trainer.h"
#include "tests/comm/thread_ranks.h"
#include "tests/launch/train/grays.h"
#include "tests/launch/train/state_of.h"

namespace lockstep {
namespace {

constexpr ImageShape kImage{4, 4, 2};
constexpr std::int64_t kBatch = 4;
constexpr std::int64_t kAccumulation = 2;
constexpr std::int64_t kStepsBetween = 3;  // between evaluations, which use the mean over ranks
constexpr int kEvaluations = 2;

struct Statistics {
  std::array<double, kImage.channels> mean = {0, 0};
  std::array<double, kImage.channels> variance = {1, 1};
};

// Adds a micro-batch whose first sample is at this position of the epoch, as batch norm does.
void take_batch(Statistics& running, const Dataset& dataset, std::int64_t position) {
  const SampleOrder order(dataset.size(), 0, 0);
  std::array<std::vector<double>, kImage.channels> values;
  std::vector<std::uint8_t> image(kImage.bytes());
  for (std::int64_t i = 0; i < kBatch; ++i) {
    dataset.read(order(position + i), image);
    for (std::size_t byte = 0; byte < image.size(); ++byte)
      values[byte % kImage.channels].push_back(image[byte] / 255.0);
  }
  constexpr double kMomentum = 0.1;
  for (std::size_t c = 0; c < values.size(); ++c) {
    const auto count = static_cast<double>(values[c].size());
    double mean = 0;
    for (const double value : values[c]) mean += value / count;
    double variance = 0;
    for (const double value : values[c]) variance += (value - mean) * (value - mean) / (count - 1);
    running.mean[c] += kMomentum * (mean - running.mean[c]);
    running.variance[c] += kMomentum * (variance - running.variance[c]);
  }
}

struct Expected {
  Statistics average{.mean = {0, 0}, .variance = {0, 0}};
  std::vector<Statistics> own;  // by rank
};

// The expected statistics after each evaluation.
std::vector<Expected> expected_statistics(int ranks, const Dataset& dataset) {
  std::vector<Expected> all;
  std::vector<Statistics> own(static_cast<std::size_t>(ranks));
  for (int evaluation = 0; evaluation < kEvaluations; ++evaluation) {
    Expected expected;
    for (int rank = 0; rank < ranks; ++rank) {
      Statistics& mine = own[static_cast<std::size_t>(rank)];
      for (std::int64_t step = 0; step < kStepsBetween; ++step) {
        for (std::int64_t micro = 0; micro < kAccumulation; ++micro) {
          const std::int64_t batches = (evaluation * kStepsBetween + step) * ranks * kAccumulation;
          take_batch(mine, dataset, (batches + rank * kAccumulation + micro) * kBatch);
        }
      }
      for (std::size_t c = 0; c < mine.mean.size(); ++c) {
        expected.average.mean[c] += mine.mean[c] / ranks;
        expected.average.variance[c] += mine.variance[c] / ranks;
      }
    }
    expected.own = own;
    all.push_back(expected);
  }
  return all;
}

void expect_statistics(Network& network, const Statistics& average, const Statistics& own) {
  int found = 0;
  const StateCopy state = state_of(network);
  for (const auto& entry : state.tensors) {
    if (!entry.name.starts_with("bn.running_")) continue;
    ++found;
    const Statistics& expected = entry.scope == StateScope::per_rank ? own : average;
    const auto& values = entry.name == "bn.running_mean" ? expected.mean : expected.variance;
    ASSERT_EQ(entry.values.size(), values.size());
    for (std::size_t c = 0; c < values.size(); ++c)
      EXPECT_NEAR(entry.values[c], values[c], 1e-6) << entry.name << "[" << c << "]";
  }
  EXPECT_EQ(found, 4);
}

void train(Communicator& communicator, const Dataset& dataset, const std::vector<Expected>& expected) {
  Graph graph({.batch = kBatch,
               .height = kImage.height,
               .width = kImage.width,
               .channels = kImage.channels,
               .classes = dataset.classes()});
  const Value x = graph.pooling(graph.batch_norm(graph.input(), {}, "bn"),
                                {.kind = PoolingKind::average, .global = true});
  graph.classify(graph.linear(x, {.features = dataset.classes()}, "fc"));
  backend_for({}).set_threads(1);
  Network network(graph, {});
  GradientBuckets buckets(network.parameters(), communicator, {});
  const auto optimizer = make_optimizer(trained_memory(network, buckets.gradients()), SgdOptions{});
  const Shard shard{.rank = communicator.rank(), .size = communicator.size()};
  BatchLoader train_loader(dataset, shard, {.batch = kBatch, .accumulation = kAccumulation});
  BatchLoader test_loader(dataset, shard, {.batch = kBatch, .tail = Tail::pad});
  Trainer trainer({network, buckets, *optimizer, train_loader, test_loader, communicator}, {.base = 0.01},
                  {.accumulation = kAccumulation});
  for (const Expected& statistics : expected) {
    for (std::int64_t step = 0; step < kStepsBetween; ++step) trainer.step();
    trainer.evaluate();
    expect_statistics(network, statistics.average,
                      statistics.own[static_cast<std::size_t>(communicator.rank())]);
  }
}

class RunningStatistics : public testing::TestWithParam<int> {};

TEST_P(RunningStatistics, ArePerRankInTrainingAndAveragedInEvaluation) {
  const Grays dataset(kImage);
  const std::vector<Expected> expected = expected_statistics(GetParam(), dataset);
  run_thread_ranks(GetParam(), [&](Communicator& communicator) {
    SCOPED_TRACE(fmt::format("rank {}", communicator.rank()));
    train(communicator, dataset, expected);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, RunningStatistics, testing::Values(1, 2, 3));

}  // namespace
}  // namespace lockstep
