// SPDX-License-Identifier: Apache-2.0
//
// Gradients that are applied one step late, on threads: compared bit by bit with a single-threaded loop in
// this test, and with overflows and failures. Resuming within a training: continued_training_test.cpp.
#include <limits>

#include <gtest/gtest.h>

#include "tests/comm/naive_tree.h"
#include "tests/kernels/kept_threads.h"
#include "tests/launch/train/grays.h"
#include "tests/launch/train/thread_training.h"
#include "tests/message_of.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

constexpr double kRate = 0.02;
constexpr float kMomentum = 0.9f, kDecay = 1e-3f;
constexpr BucketOptions kLate{.first_bytes = 256, .middle_bytes = 4096, .last_bytes = 256, .delayed = true};

using Values = std::vector<float>;

// One step of SGD from its definition.
void take_sgd_step(const SgdOptions& sgd, float rate, std::span<float> values, const Values& gradient,
                   float factor, Values& momentum) {
  const auto m = static_cast<float>(sgd.momentum), decay = static_cast<float>(sgd.weight_decay);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float g = factor * gradient[i] + decay * values[i];
    momentum[i] = m * momentum[i] + g;
    values[i] -= rate * (sgd.nesterov ? g + m * momentum[i] : momentum[i]);
  }
}

enum class Evaluates { at_parameters, at_predicted_parameters };

// The parameters of all ranks after each step, by the definition of delayed SGD.
std::vector<Values> naive_delayed_sgd(const ThreadTraining& training,
                                      Evaluates where = Evaluates::at_predicted_parameters) {
  const SgdOptions& sgd = std::get<SgdOptions>(training.optimizer);
  const auto rate = static_cast<float>(training.learning_rate);
  const KeptThreads kept_threads;
  backend_for({}).set_threads(1);
  const Grays dataset(training.image, training.samples);
  Graph graph({.batch = training.batch, .height = 8, .width = 8, .channels = 1, .classes = 4});
  build_network(graph, training.network);
  KernelChoices first;
  Network network(graph, {.seed = training.seed, .choices = &first});
  const std::size_t count = network.values().size();
  std::vector<std::unique_ptr<BatchLoader>> loaders;
  std::vector<Values> gradients(static_cast<std::size_t>(training.ranks), Values(count));
  for (int rank = 0; rank < training.ranks; ++rank) {
    loaders.push_back(std::make_unique<BatchLoader>(dataset, Shard{.rank = rank, .size = training.ranks},
                                                    LoaderOptions{.batch = training.batch,
                                                                  .accumulation = training.accumulation,
                                                                  .seed = training.seed,
                                                                  .threads = 1}));
  }
  Stream stream({}, StreamUse::compute);
  Values late(count), momentum(count);
  std::vector<Values> after;
  for (int step = 0; step < training.steps; ++step) {
    const Values kept(network.values().begin(), network.values().end());
    for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
      if (step > 0 && where == Evaluates::at_predicted_parameters) {
        Values copy = momentum;
        const float factor = 1 / (1 / static_cast<float>(training.ranks));
        take_sgd_step(sgd, rate, network.values(), gradients[rank], factor, copy);
      }
      for (Parameter& parameter : network.parameters())
        parameter.gradient = gradients[rank].data() + parameter.offset;
      for (std::int64_t micro = 0; micro < training.accumulation; ++micro) {
        const Pass pass{.stream = stream,
                        .mode = Mode::training,
                        .gradient_scale = 1.0f / static_cast<float>(loaders[rank]->global_batch()),
                        .gradients = micro == 0 ? Write::overwrite : Write::accumulate};
        network.forward(loaders[rank]->next(), pass);
        network.backward(pass);
      }
      std::ranges::copy(kept, network.values().begin());
    }
    if (step > 0) take_sgd_step(sgd, rate, network.values(), late, 1, momentum);
    for (std::size_t i = 0; i < count; ++i) {
      late[i] = naive_tree(
          training.ranks, [&](int rank) { return gradients[static_cast<std::size_t>(rank)][i]; },
          [](float a, float b) { return a + b; });
    }
    after.emplace_back(network.values().begin(), network.values().end());
  }
  return after;
}

TEST(DelayedGradients, MatchANaiveLoopBitForBit) {
  Thinning thinning;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::int64_t accumulation : thinning.taken({1, 2})) {
      ThreadTraining training{
          .ranks = ranks,
          .accumulation = accumulation,
          .steps = 6,
          .buckets = kLate,
          .optimizer =
              SgdOptions{.momentum = kMomentum, .weight_decay = kDecay, .nesterov = accumulation == 2},
          .learning_rate = kRate};
      const std::vector<Values> expected = naive_delayed_sgd(training);
      training.after_step = [&](int rank, int step, Trainer&, Network& network, Optimizer&) {
        const std::span<const float> values = network.values();
        EXPECT_TRUE(std::ranges::equal(values, expected[static_cast<std::size_t>(step - 1)]))
            << "rank " << rank << " of " << ranks << " after step " << step;
      };
      train_on_threads(training);
      EXPECT_NE(expected[0], expected[1]) << "the second step moves parameters";
    }
  }
}

// A single rank knows all pending gradients, so it predicts its parameters exactly: the training equals one
// with gradients in time, one step later.
TEST(DelayedGradients, OnOneRankMatchGradientsInTimeBitForBit) {
  Thinning thinning;
  for (const OptimizerOptions& optimizer :
       {OptimizerOptions(SgdOptions{.weight_decay = kDecay}), OptimizerOptions(SgdOptions{.nesterov = true}),
        OptimizerOptions(AdamWOptions{}), OptimizerOptions(LarsOptions{.trust_coefficient = 0.02})}) {
    for (const Precision precision : thinning.taken({Precision::fp32, Precision::bf16, Precision::fp16})) {
      ThreadTraining training{.network = {.name = "cnn", .batch_norm = true},
                              .accumulation = 2,
                              .steps = 5,
                              .precision = precision,
                              .optimizer = optimizer,
                              .loss_scale = {.initial = precision == Precision::fp16 ? 1024.0 : 1.0}};
      std::vector<Values> in_time, late;
      std::vector<Values>* to = &in_time;
      training.after_step = [&](int, int, Trainer&, Network& network, Optimizer&) {
        to->emplace_back(network.values().begin(), network.values().end());
      };
      train_on_threads(training);
      to = &late;
      training.buckets = kLate;
      train_on_threads(training);
      for (std::size_t step = 1; step < late.size(); ++step) {
        EXPECT_EQ(late[step], in_time[step - 1])
            << "step " << step << " by rule " << optimizer.index() << " in " << static_cast<int>(precision);
      }
    }
  }
}

// The learning rate is too high for gradients at the current parameters: with those the network learns
// nothing of its four classes, for which the initial loss is 1.39.
TEST(DelayedGradients, TrainAtTheLearningRateOfGradientsInTime) {
  for (const bool nesterov : {false, true}) {
    ThreadTraining training{.ranks = 4,
                            .steps = 60,
                            .optimizer = SgdOptions{.momentum = kMomentum, .nesterov = nesterov},
                            .learning_rate = 0.05};
    const double in_time = train_on_threads(training)[0].evaluation.loss;
    training.buckets = kLate;
    EXPECT_LT(train_on_threads(training)[0].evaluation.loss, in_time + 0.3);
    const Values unpredicted = naive_delayed_sgd(training, Evaluates::at_parameters).back();
    training.after_step = [&](int, int step, Trainer&, Network& network, Optimizer&) {
      if (step == training.steps) std::ranges::copy(unpredicted, network.values().begin());
    };
    EXPECT_GT(train_on_threads(training)[0].evaluation.loss, 1.1)
        << "control: delayed gradients at the current parameters do not learn";
  }
}

TEST(DelayedGradients, HaveTheSameBitsOnEveryRankWithAnyBucketsAndCodecs) {
  const ExchangeChoice choices[] = {
      {.kind = &kDenseSum},
      {.kind = &kInt8Codec},
      {.kind = &kPowerSgdCodec, .settings = {{"rank", 2}, {"start_step", 3}}},
      {.kind = &kTopKCodec, .settings = {{"density", 0.05}, {"warmup_steps", 4}}}};
  for (const ExchangeChoice& choice : choices) {
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      ThreadTraining training{.network = {.name = "cnn", .batch_norm = true},
                              .ranks = 3,
                              .steps = kOneOf == 1 ? 30 : 6,
                              .precision = precision,
                              .buckets = kLate};
      training.buckets.exchange = choice;
      training.buckets.codecs.compress_within_node = true;
      std::vector<double> first(3);
      training.after_step = [&](int rank, int step, Trainer& trainer, Network&, Optimizer&) {
        if (step == 1) first[static_cast<std::size_t>(rank)] = trainer.evaluate().loss;
      };
      const std::vector<TrainedRank> trained = train_on_threads(training);
      for (std::size_t rank = 1; rank < 3; ++rank)
        EXPECT_EQ(trained[rank].digest, trained[0].digest) << choice.describe();
      if (kOneOf == 1) {
        EXPECT_LT(trained[0].evaluation.loss, 0.8 * first[0]) << choice.describe();
      }
      if (choice.kind != &kDenseSum) continue;
      training.buckets = {.overlap = false, .delayed = true};
      EXPECT_EQ(train_on_threads(training)[0].digest, trained[0].digest) << "one bucket, without overlap";
    }
  }
}

// Each scale is halved for gradients that overflow it, until both fit. Skipped gradients change nothing.
TEST(DelayedGradients, AreSkippedIfTheyOverflow) {
  ThreadTraining training{.network = {.name = "cnn", .batch_norm = true},
                          .ranks = 2,
                          .steps = 40,
                          .precision = Precision::fp16,
                          .buckets = kLate,
                          .loss_scale = {.initial = 0x1p24, .rule = {.interval = 1000}}};
  std::vector<std::vector<StepControl>> controls(2);
  std::vector<std::vector<Values>> values(2);
  training.after_step = [&](int rank, int, Trainer&, Network& network, Optimizer& optimizer) {
    Stream stream({}, StreamUse::compute);
    const auto at = static_cast<std::size_t>(rank);
    controls[at].push_back(optimizer.read_control(stream));
    values[at].emplace_back(network.values().begin(), network.values().end());
    for (const float statistic : network.statistics()) EXPECT_TRUE(std::isfinite(statistic));
    Values halves(static_cast<std::size_t>(network.weight_copies().count()));
    network.backend().cast(stream, {.count = network.weight_copies().count(),
                                    .from_type = DType::f16,
                                    .to_type = DType::f32,
                                    .from = network.weight_copies().data,
                                    .to = halves.data()});
    for (std::size_t i = 0; i < halves.size(); i += kOneOf) {
      const float value = values[at].back()[i];
      ASSERT_NEAR(halves[i], value, 1e-3 * std::abs(value) + 1e-7) << "copies of the parameters of this step";
    }
  };
  const std::vector<TrainedRank> trained = train_on_threads(training);
  EXPECT_EQ(trained[1].digest, trained[0].digest);
  int skipped = 0;
  for (std::size_t step = 1; step < controls[0].size(); ++step) {
    EXPECT_EQ(controls[1][step].loss_scale, controls[0][step].loss_scale);
    const bool skips = controls[0][step].finite == 0;
    skipped += skips ? 1 : 0;
    EXPECT_EQ(values[0][step] == values[0][step - 1], skips) << "step " << step + 1;
  }
  EXPECT_GE(skipped, 4);
  EXPECT_EQ(controls[0].back().step, 40 - skipped) << "the first step applies no gradients";
  const float last = controls[0].back().loss_scale, other = controls[0][controls[0].size() - 2].loss_scale;
  EXPECT_LT(std::max(last, other), 0x1p24f);
  EXPECT_EQ(std::exp2(skipped), 0x1p24 / last * (0x1p24 / other))
      << "each skipped step halves one of the two scales";
}

// With a common count of good steps, an even interval would always end at the same one of the two.
TEST(DelayedGradients, BothLossScalesGrow) {
  ThreadTraining training{.ranks = 2,
                          .steps = 9,
                          .precision = Precision::fp16,
                          .buckets = kLate,
                          .loss_scale = {.initial = 8, .rule = {.interval = 2}}};
  std::vector<float> scales;
  training.after_step = [&](int rank, int, Trainer&, Network&, Optimizer& optimizer) {
    Stream stream({}, StreamUse::compute);
    if (rank == 0) scales.push_back(optimizer.read_control(stream).loss_scale);
  };
  train_on_threads(training);
  EXPECT_EQ(scales, (std::vector<float>{8, 8, 8, 16, 16, 16, 16, 32, 32}));
}

// The gradients of steps 1 and 2 lower one of the two scales each; those of step 3 overflow the smallest one.
TEST(DelayedGradients, OverflowAtTheMinimumOfTheirOwnLossScaleEndsTheTraining) {
  const ThreadTraining training{
      .ranks = 2,
      .steps = 8,
      .precision = Precision::fp16,
      .buckets = kLate,
      .loss_scale = {.initial = 0x1p36, .rule = {.interval = 1000, .least = 0x1p35f}}};
  expect_parts(message_of<std::exception>([&] { train_on_threads(training); }), {"step 3"});
}

TEST(DelayedGradients, NonFiniteOnesEndTheTrainingAndNameTheirStep) {
  ThreadTraining training{.ranks = 3, .steps = 8, .buckets = kLate};
  training.after_step = [&](int rank, int step, Trainer&, Network& network, Optimizer&) {
    if (rank == 1 && step == 3) network.values()[0] = std::numeric_limits<float>::quiet_NaN();
  };
  expect_parts(message_of<std::exception>([&] { train_on_threads(training); }), {"step 4", "rank 1"});
}

}  // namespace
}  // namespace lockstep
