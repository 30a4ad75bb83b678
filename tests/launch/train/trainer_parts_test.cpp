// SPDX-License-Identifier: Apache-2.0
//
// The parts of a Trainer. It refuses those that do not fit together, which would train or evaluate wrongly
// without an error.
#include <memory>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "kernels/host_augmentation.h"
#include "launch/train/digest.h"
#include "launch/train/trainer.h"
#include "models/networks/networks.h"
#include "tests/comm/thread_ranks.h"
#include "tests/launch/train/grays.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

constexpr int kPartsRanks = 2;
constexpr ImageShape kPartsImage{8, 8, 1};
constexpr std::int64_t kPartsBatch = 4, kPartsMicroBatches = 2, kPartsSamples = 83;

Graph parts_graph() {
  Graph graph({.batch = kPartsBatch,
               .height = kPartsImage.height,
               .width = kPartsImage.width,
               .channels = kPartsImage.channels,
               .classes = 4});
  cnn(graph, {.batch_norm = true, .dropout = 0.3});
  return graph;
}

// A new network, trained by one rank. statistics_of: the micro-batches of its StepStatistics; 0: it has none.
std::string digest_after_two_steps(BatchLoader& train, BatchLoader& test, std::int64_t accumulation,
                                   const BucketOptions& bucket_options = {}, std::int64_t statistics_of = 0) {
  backend_for({}).set_threads(1);
  KernelChoices first;
  Network network(parts_graph(), {.choices = &first});
  const auto communicator = make_self_communicator();
  GradientBuckets buckets(network.parameters(), *communicator, bucket_options);
  const auto optimizer = make_optimizer(trained_memory(network, buckets.gradients()), SgdOptions{});
  std::optional<StepStatistics> statistics;
  if (statistics_of > 0) statistics.emplace(network, *communicator, statistics_of);
  Trainer trainer({.network = network,
                   .buckets = buckets,
                   .optimizer = *optimizer,
                   .train = train,
                   .test = test,
                   .communicator = *communicator,
                   .step_statistics = statistics ? &*statistics : nullptr},
                  {.base = 0.01}, {.accumulation = accumulation});
  for (int step = 0; step < 2; ++step) trainer.step();
  trainer.evaluate();
  return digest(network, *optimizer);
}

TEST(TrainerParts, StartAtTheBeginningOfAUsedLoader) {
  const Grays dataset(kPartsImage, kPartsSamples);
  BatchLoader train(dataset, {}, {.batch = kPartsBatch, .accumulation = kPartsMicroBatches, .seed = 3});
  BatchLoader test(dataset, {}, {.batch = kPartsBatch, .tail = Tail::pad});
  const std::string with_new_loader = digest_after_two_steps(train, test, kPartsMicroBatches);
  EXPECT_EQ(digest_after_two_steps(train, test, kPartsMicroBatches), with_new_loader);
}

TEST(TrainerParts, MustAgreeOnTheMicroBatchesOfAStep) {
  const Grays dataset(kPartsImage, kPartsSamples);
  BatchLoader train(dataset, {}, {.batch = kPartsBatch, .accumulation = kPartsMicroBatches});
  BatchLoader test(dataset, {}, {.batch = kPartsBatch, .tail = Tail::pad});
  BatchLoader drops(dataset, {}, {.batch = kPartsBatch});
  BatchLoader accumulates(dataset, {},
                          {.batch = kPartsBatch, .accumulation = kPartsMicroBatches, .tail = Tail::pad});
  const auto refusal = [&](BatchLoader& evaluated, std::int64_t accumulation,
                           const BucketOptions& buckets = {}, std::int64_t statistics_of = 0) {
    return message_of(
        [&] { digest_after_two_steps(train, evaluated, accumulation, buckets, statistics_of); });
  };
  EXPECT_EQ(refusal(test, kPartsMicroBatches), "");
  EXPECT_EQ(refusal(test, kPartsMicroBatches, {.micro_batches = kPartsMicroBatches}), "");
  expect_parts(refusal(test, 1), {"TrainerOptions::accumulation", "LoaderOptions::accumulation"});
  expect_parts(refusal(test, kPartsMicroBatches, {.micro_batches = kPartsMicroBatches + 1}),
               {"TrainerOptions::accumulation", "BucketOptions::micro_batches"});
  EXPECT_EQ(refusal(test, kPartsMicroBatches, {}, kPartsMicroBatches), "");
  expect_parts(refusal(test, kPartsMicroBatches, {}, kPartsMicroBatches + 1),
               {"TrainerOptions::accumulation", "StepStatistics"});
  for (BatchLoader* other : {&drops, &accumulates})
    expect_parts(refusal(*other, kPartsMicroBatches), {"test loader", "Tail::pad"});
}

TEST(TrainerParts, DoNotAugmentTestImages) {
  const Grays dataset(kPartsImage, kPartsSamples);
  BatchLoader train(dataset, {}, {.batch = kPartsBatch});
  BatchLoader flips(dataset, {},
                    {.batch = kPartsBatch,
                     .tail = Tail::pad,
                     .augmentation = std::make_shared<HostAugmentation>(Augmentation{.horizontal_flip = true},
                                                                        kPartsImage.height, kPartsImage.width,
                                                                        kPartsImage.channels)});
  expect_parts(message_of([&] { digest_after_two_steps(train, flips, 1); }),
               {"test loader", "LoaderOptions::augmentation"});
}

// With the same samples on every rank, gradients would be sums over ranks, and evaluations count them twice.
TEST(TrainerParts, HaveLoadersThatDivideTheSamplesAmongAllRanks) {
  const Grays dataset(kPartsImage, kPartsSamples);
  run_thread_ranks(kPartsRanks, [&](Communicator& communicator) {
    backend_for({}).set_threads(1);
    KernelChoices first;
    Network network(parts_graph(), {.choices = &first});
    GradientBuckets buckets(network.parameters(), communicator, {});
    const auto optimizer = make_optimizer(trained_memory(network, buckets.gradients()), SgdOptions{});
    const Shard shard{.rank = communicator.rank(), .size = kPartsRanks};
    const LoaderOptions padded{.batch = kPartsBatch, .tail = Tail::pad};
    BatchLoader train(dataset, shard, {.batch = kPartsBatch}), test(dataset, shard, padded);
    BatchLoader whole_train(dataset, {}, {.batch = kPartsBatch}), whole_test(dataset, {}, padded);
    const auto refusal = [&](BatchLoader& trained, BatchLoader& evaluated) {
      return message_of([&] {
        const Trainer trainer({network, buckets, *optimizer, trained, evaluated, communicator},
                              {.base = 0.01}, {});
      });
    };
    EXPECT_EQ(refusal(train, test), "");
    expect_parts(refusal(whole_train, test), {"loader", "Shard"});
    expect_parts(refusal(train, whole_test), {"loader", "Shard"});
  });
}

}  // namespace
}  // namespace lockstep
