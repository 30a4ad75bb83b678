// SPDX-License-Identifier: Apache-2.0
//
// train.reproducible: the same micro-batches give the same bits on any number of ranks, including running
// statistics and the optimizer's state.
#include <set>

#include <gtest/gtest.h>

#include "tests/launch/train/thread_training.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

constexpr int kMicroBatches = 8;

ThreadTraining small(const NetworkChoice& network, Precision precision = Precision::fp32) {
  return {.network = network,
          .samples = 40,
          .batch = 2,
          .steps = 2,
          .precision = precision,
          .reproducible = true};
}

// The digest, after the check that it is the same on all ranks.
std::string digest_on(ThreadTraining training, int ranks, int micro_batches = kMicroBatches) {
  training.ranks = ranks;
  training.accumulation = micro_batches / ranks;
  const std::vector<TrainedRank> trained = train_on_threads(training);
  for (const TrainedRank& rank : trained) EXPECT_EQ(rank.digest, trained[0].digest);
  return trained[0].digest;
}

void expect_one_digest(const ThreadTraining& training,
                       const std::vector<int>& dealings = kOneOf == 1 ? std::vector{1, 2, 4, 8}
                                                                      : std::vector{2, 4}) {
  std::set<std::string> digests;
  for (const int ranks : dealings) digests.insert(digest_on(training, ranks));
  EXPECT_EQ(digests.size(), 1u) << training.network.name << " in "
                                << name_of(storage_type(training.precision));
}

// Checks that the digests differ without train.reproducible.
void expect_several_digests(ThreadTraining training) {
  if (kOneOf > 1) return;  // only how sums are rounded: nothing for a sanitizer
  training.reproducible = false;
  EXPECT_NE(digest_on(training, 1), digest_on(training, 4)) << training.network.name;
}

TEST(Reproducible, MlpAndCnnWithAndWithoutBatchNorm) {
  for (const NetworkChoice& network :
       {NetworkChoice{.name = "mlp"}, {.name = "cnn", .batch_norm = false}, {.name = "cnn"}}) {
    for (const Precision precision : {Precision::fp32, Precision::bf16})
      expect_one_digest(small(network, precision));
    expect_several_digests(small(network));
    expect_several_digests(small(network, Precision::bf16));
  }
}

TEST(Reproducible, ResNet) {
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    expect_one_digest(small({.name = "resnet20"}, precision));
  expect_several_digests(small({.name = "resnet20"}));
}

// Numbers of ranks and micro-batches that are no powers of two.
TEST(Reproducible, OnThreeAndSixRanks) {
  const ThreadTraining training = small({.name = "cnn"});
  const std::string digest = digest_on(training, 1, 6);
  for (const int ranks : {3, 6}) EXPECT_EQ(digest_on(training, ranks, 6), digest) << ranks << " ranks";
}

TEST(Reproducible, WithAllRandomFeaturesAndOtherBuckets) {
  ThreadTraining training = small({.name = "cnn", .dropout = 0.5});
  training.augmentation = {.crop_padding = 2, .horizontal_flip = true};
  training.label_smoothing = 0.1f;
  training.optimizer = AdamWOptions{};
  const std::string digest = digest_on(training, 1);
  training.buckets = {.first_bytes = 256, .middle_bytes = 4096, .last_bytes = 256};
  EXPECT_EQ(digest_on(training, 4), digest);
  training.buckets.overlap = false;
  EXPECT_EQ(digest_on(training, 2), digest);
}

// A recomputed forward pass does not update running statistics again.
TEST(Reproducible, WithRecomputation) {
  ThreadTraining training = small({.name = "resnet20"});
  const std::string digest = digest_on(training, 4);
  for (const Recompute& recompute : {Recompute::blocks, Recompute::every(5)}) {
    training.recompute = recompute;
    EXPECT_EQ(digest_on(training, 2), digest) << "recomputation " << described(recompute);
  }
}

// A skipped step keeps the running statistics, and overflowed gradients are discarded.
TEST(Reproducible, WithALossScaleThatIsTooLargeAtFirst) {
  ThreadTraining training = small({.name = "cnn"}, Precision::fp16);
  training.steps = 24;
  training.loss_scale = {.initial = 0x1p36f, .rule = {.interval = 2000}};
  std::set<float> scales;
  training.after_step = [&](int rank, int, Trainer&, Network&, Optimizer& optimizer) {
    Stream stream({}, StreamUse::compute);
    if (rank == 0) scales.insert(optimizer.read_control(stream).loss_scale);
  };
  expect_one_digest(training, {1, kOneOf == 1 ? 8 : 2});
  EXPECT_GT(scales.size(), 3u) << "some steps are skipped";
  EXPECT_LT(scales.size(), 24u) << "and some are not";
}

// A step updates running statistics once, by the mean of the updates of its micro-batches, and equally on
// every rank, also between evaluations.
TEST(Reproducible, UpdatesRunningStatisticsOncePerStep) {
  ThreadTraining training = small({.name = "cnn"});
  training.learning_rate = 1e-30;  // parameters stay constant, so micro-batches are comparable
  training.samples = 16;           // one epoch of one step
  training.ranks = 2;
  training.accumulation = 4;
  const TrainedState together = states_after(training, {1}).at(1);
  std::map<std::string, std::vector<double>> mean;
  training.reproducible = false;
  training.ranks = kMicroBatches;
  training.accumulation = 1;
  std::vector<TrainedState> apart(kMicroBatches);
  training.steps = 1;
  training.after_step = [&](int rank, int, Trainer&, Network& network, Optimizer&) {
    apart[static_cast<std::size_t>(rank)] = trained_state(network);
  };
  train_on_threads(training);
  for (const TrainedState& one : apart) {
    for (const auto& [name, values] : one) {
      mean[name].resize(values.size());
      for (std::size_t i = 0; i < values.size(); ++i) mean[name][i] += values[i] / kMicroBatches;
    }
  }
  int statistics = 0;
  for (const auto& [name, values] : together) {
    if (name.find("running") == std::string::npos) continue;
    ++statistics;
    EXPECT_NE(values, apart[0].at(name)) << name;
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], mean[name][i], 1e-6) << name;
  }
  EXPECT_EQ(statistics, 4);
}

TEST(Reproducible, PlanIncludesTheMemoryOfSums) {
  Graph graph({.batch = 2, .height = 8, .width = 8, .channels = 1, .classes = 4});
  build_network(graph, {.name = "cnn"});
  Network network(graph, {});
  const auto self = make_self_communicator();
  for (const auto& [micro_batches, sums] : {std::pair{1, 0}, {2, 1}, {5, 3}, {8, 3}}) {
    const StepStatistics statistics(network, *self, micro_batches);
    EXPECT_EQ(statistics.memory_bytes(), static_cast<std::size_t>(sums) * network.statistics().size_bytes());
    EXPECT_EQ(StepStatistics::planned_bytes(network.memory(), micro_batches), statistics.memory_bytes());
  }
}

}  // namespace
}  // namespace lockstep
