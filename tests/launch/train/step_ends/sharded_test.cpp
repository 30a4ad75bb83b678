// SPDX-License-Identifier: Apache-2.0
//
// The sharded exchange: the bits of the dense one on any number of ranks, with a part of the optimizer's
// state on each rank, and states that either exchange restores on any number of ranks.
#include "launch/train/step_ends/sharded.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "launch/train/digest.h"
#include "launch/train/trainer.h"
#include "models/networks/networks.h"
#include "tests/comm/thread_ranks.h"
#include "tests/launch/train/grays.h"
#include "tests/launch/train/state_of.h"
#include "tests/message_of.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

constexpr std::int64_t kGlobalBatch = 24;

struct ShardedCase {
  OptimizerOptions optimizer = AdamWOptions{.weight_decay = 0.1};
  Precision precision = Precision::fp32;
  LossScaleOptions loss_scale = {};
  std::int64_t accumulation = 1;
  double ema_decay = 0;
  bool overlap = true;
};

// What one rank trains with. The batch norm has per-rank statistics, and some buckets have fewer cache lines
// than there are ranks.
class ShardedObjects {
 public:
  ShardedObjects(Communicator& communicator, const Dataset& dataset, ExchangeForm form,
                 const ShardedCase& with)
      : network_(graph_of(kGlobalBatch / communicator.size() / with.accumulation),
                 {.precision = with.precision, .seed = 3, .choices = &first_}),
        buckets_(network_.parameters(), communicator,
                 {.first_bytes = 256,
                  .middle_bytes = 2048,
                  .last_bytes = 256,
                  .overlap = with.overlap,
                  .exchange = {.kind = form == ExchangeForm::sharded ? &kShardedExchange : &kDenseSum},
                  .micro_batches = with.accumulation}),
        optimizer_(
            make_optimizer(trained_memory(network_, buckets_.applied_gradients(), buckets_.completion()),
                           with.optimizer, with.loss_scale)),
        train_(dataset, {.rank = communicator.rank(), .size = communicator.size()},
               {.batch = kGlobalBatch / communicator.size() / with.accumulation,
                .accumulation = with.accumulation,
                .seed = 3}),
        test_(dataset, {.rank = communicator.rank(), .size = communicator.size()},
              {.batch = kGlobalBatch / communicator.size() / with.accumulation, .tail = Tail::pad}),
        trainer_({network_, buckets_, *optimizer_, train_, test_, communicator}, {.base = 0.01},
                 {.accumulation = with.accumulation, .epochs = 100, .ema_decay = with.ema_decay}) {}

  Trainer& trainer() { return trainer_; }
  GradientBuckets& buckets() { return buckets_; }
  Optimizer& optimizer() { return *optimizer_; }
  Network& network() { return network_; }
  void step_until(std::int64_t steps) {
    while (trainer_.steps() < steps) trainer_.step();
  }
  std::string state_digest() { return digest(network_, *optimizer_, trainer_.weight_average()); }

 private:
  static Graph graph_of(std::int64_t batch) {
    Graph graph({.batch = batch, .height = 8, .width = 8, .channels = 3, .classes = 4});
    cnn(graph, {.batch_norm = true, .dropout = 0.3});
    return graph;
  }

  KernelChoices first_;
  Network network_;
  GradientBuckets buckets_;
  std::unique_ptr<Optimizer> optimizer_;
  BatchLoader train_;
  BatchLoader test_;
  Trainer trainer_;
};

void on_sharded_ranks(int ranks, const std::function<void(Communicator&, const Dataset&)>& body) {
  const Grays dataset({8, 8, 3}, 480);
  run_thread_ranks(ranks, [&](Communicator& communicator) {
    backend_for({}).set_threads(1);
    body(communicator, dataset);
  });
}

void expect_dense_bits(int ranks, const ShardedCase& with, const std::string& what) {
  on_sharded_ranks(ranks, [&](Communicator& communicator, const Dataset& dataset) {
    ShardedObjects dense(communicator, dataset, ExchangeForm::dense, with);
    ShardedObjects sharded(communicator, dataset, ExchangeForm::sharded, with);
    for (const std::int64_t steps : {1, 2, 12}) {
      dense.step_until(steps);
      sharded.step_until(steps);
      EXPECT_EQ(sharded.state_digest(), dense.state_digest())
          << what << " on " << ranks << " ranks after " << steps << " steps";
    }
    EXPECT_EQ(sharded.trainer().evaluate().loss, dense.trainer().evaluate().loss);
  });
}

TEST(Sharded, GivesTheBitsOfTheDenseExchange) {
  for (const int ranks : Thinning().taken({3, 1, 2, 4, 6, 8})) {
    expect_dense_bits(ranks, {}, "adamw");
    expect_dense_bits(
        ranks, {.optimizer = SgdOptions{.momentum = 0.9, .weight_decay = 1e-3, .nesterov = true}}, "sgd");
  }
  expect_dense_bits(3, {.accumulation = 4, .overlap = false}, "accumulation");
  expect_dense_bits(4, {.ema_decay = 0.9}, "average of the parameters");
}

// The scale is so large that steps are skipped at first and after each doubling: ranks must agree on this,
// because each sees its own share only.
TEST(Sharded, GivesTheBitsOfTheDenseExchangeInHalfPrecision) {
  const LossScaleOptions scale{.initial = 0x1p22f, .rule = {.interval = 2}};
  for (const int ranks : Thinning().taken({4, 1, 2})) {
    expect_dense_bits(ranks, {.precision = Precision::fp16, .loss_scale = scale}, "fp16");
    expect_dense_bits(ranks, {.precision = Precision::bf16, .accumulation = 3}, "bf16");
  }
}

TEST(Sharded, KeepsAPartOfTheStateOnEachRank) {
  for (const int ranks : {1, 2, 3, 8}) {
    on_sharded_ranks(ranks, [&](Communicator& communicator, const Dataset& dataset) {
      ShardedObjects sharded(communicator, dataset, ExchangeForm::sharded, {});
      const std::size_t values = sharded.network().values().size();
      // The rest of each bucket, less than one cache line per rank, is on all ranks.
      std::size_t rest = 0;
      for (const Bucket& bucket : sharded.buckets().buckets())
        rest += static_cast<std::size_t>(sharded.buckets().plan().rest_of(bucket).count());
      EXPECT_EQ(sharded.optimizer().state().size(),
                2 * ((values - rest) / static_cast<std::size_t>(ranks) + rest));
    });
  }
}

// One value of the rank's own share is damaged: the other rank keeps its copy, and gives it back.
TEST(Sharded, ASkippedStepSpreadsNoDamage) {
  for (const int damaged : {0, 1}) {
    on_sharded_ranks(2, [&](Communicator& communicator, const Dataset& dataset) {
      ShardedObjects sharded(communicator, dataset, ExchangeForm::sharded, {});
      sharded.step_until(1);
      const Bucket& bucket = *std::ranges::max_element(sharded.buckets().buckets(), {}, &Bucket::share);
      const std::span<float> values = sharded.network().values();
      if (communicator.rank() == damaged)
        values[static_cast<std::size_t>(bucket.share_of(damaged).begin)] =
            std::numeric_limits<float>::quiet_NaN();
      expect_parts(message_of<std::exception>([&] { sharded.step_until(3); }),
                   {fmt::format("on rank {} in parameter", damaged)});
      EXPECT_TRUE(std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))
          << "rank " << communicator.rank();
    });
  }
}

// A state that one exchange saved on some ranks is restored by the other one on other ranks.
TEST(Sharded, RestoresTheStateOfAnyExchangeOnAnyNumberOfRanks) {
  const auto saved_on = [](int ranks, ExchangeForm form) {
    std::pair<StateCopy, std::string> saved;
    on_sharded_ranks(ranks, [&](Communicator& communicator, const Dataset& dataset) {
      ShardedObjects objects(communicator, dataset, form, {});
      objects.step_until(5);
      StateCopy state = state_of(objects.trainer());
      const std::string digest = objects.state_digest();
      if (communicator.rank() == 0) saved = {std::move(state), digest};
    });
    return saved;
  };
  using enum ExchangeForm;
  const auto [by_two, digest_by_two] = saved_on(2, sharded);
  const auto [by_two_dense, digest_by_two_dense] = saved_on(2, dense);
  EXPECT_EQ(digest_by_two_dense, digest_by_two);
  const auto resumed_on = [&saved_digest = digest_by_two](int ranks, ExchangeForm form,
                                                          const StateCopy& saved) {
    std::vector<std::string> digests(static_cast<std::size_t>(ranks));
    on_sharded_ranks(ranks, [&](Communicator& communicator, const Dataset& dataset) {
      ShardedObjects objects(communicator, dataset, form, {});
      set_state(objects.trainer(), saved);
      EXPECT_EQ(objects.state_digest(), saved_digest);
      objects.step_until(9);
      digests[static_cast<std::size_t>(communicator.rank())] = objects.state_digest();
    });
    for (const std::string& each : digests) EXPECT_EQ(each, digests.front());
    return digests.front();
  };
  ASSERT_EQ(by_two.tensors.size(), by_two_dense.tensors.size());
  for (std::size_t i = 0; i < by_two.tensors.size(); ++i)
    EXPECT_TRUE(by_two.tensors[i] == by_two_dense.tensors[i]) << by_two.tensors[i].name;
  for (const int ranks : Thinning().taken({3, 1, 4, 8})) {
    const std::string expected = resumed_on(ranks, dense, by_two);
    EXPECT_EQ(resumed_on(ranks, sharded, by_two), expected) << ranks;
    EXPECT_EQ(resumed_on(ranks, sharded, by_two_dense), expected) << ranks;
  }
}

TEST(Sharded, RefusesWhatItCannotDo) {
  const auto self = make_self_communicator();
  const Grays dataset({8, 8, 3}, 480);
  const auto refuses = [&](const BucketOptions& options) {
    KernelChoices first;
    Graph graph({.batch = 2, .height = 8, .width = 8, .channels = 3, .classes = 4});
    cnn(graph);
    Network network(graph, {.choices = &first});
    return message_of<ConfigError>([&] { GradientBuckets(network.parameters(), *self, options); });
  };
  const ExchangeChoice sharded{.kind = &kShardedExchange};
  for (const BucketOptions& options : {BucketOptions{.exchange = sharded, .along_tree = true},
                                       BucketOptions{.exchange = sharded, .delayed = true},
                                       BucketOptions{.exchange = sharded, .one_by_one = true}})
    expect_parts(refuses(options), {"comm.exchange"});
  const auto wrong_optimizer = [&](const OptimizerOptions& optimizer) {
    ShardedObjects(*self, dataset, ExchangeForm::sharded, {.optimizer = optimizer});
  };
  expect_parts(message_of([&] { wrong_optimizer(LarsOptions{}); }), {"LARS"});
  EXPECT_EQ(message_of([&] { wrong_optimizer(AdamWOptions{}); }), "");
}

}  // namespace
}  // namespace lockstep
