// SPDX-License-Identifier: Apache-2.0
//
// Local SGD on threads, compared with single-rank trainings whose parameters the test averages, and with
// averaged gradients where both are equal. Also the final state of all ranks, the overflow of one rank, and
// the synchronous steps of post-local SGD. Restored state and traffic: continued_training_test.cpp.
#include <limits>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "launch/train/checkpoint/keeper.h"
#include "tests/distance.h"
#include "tests/launch/train/grays.h"
#include "tests/launch/train/thread_training.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

constexpr ImageShape kTinyImage{8, 8, 1};

// One of several ranks, in a world of one rank: its gradients are the mean over its own samples.
class LoneRank {
 public:
  LoneRank(const Dataset& dataset, const Shard& shard, double learning_rate)
      : communicator_(make_self_communicator()),
        network_(graph(), {.seed = 1, .choices = &first_}),
        buckets_(network_.parameters(), *communicator_, {}),
        optimizer_(make_optimizer(trained_memory(network_, buckets_.gradients()), SgdOptions{})),
        train_(dataset, shard, {.batch = 8, .seed = 1, .threads = 1}),
        test_(dataset, {}, {.batch = 8, .tail = Tail::pad}),
        trainer_({network_, buckets_, *optimizer_, train_, test_, *communicator_}, {.base = learning_rate},
                 {}) {}

  void step() { trainer_.step(); }
  std::span<float> values() { return network_.values(); }
  TrainedState state() { return trained_state(network_); }

 private:
  static Graph graph() {
    Graph graph({.batch = 8, .height = 8, .width = 8, .channels = 1, .classes = 4});
    build_network(graph, {.name = "cnn", .batch_norm = false});
    return graph;
  }

  std::unique_ptr<Communicator> communicator_;
  KernelChoices first_;
  Network network_;
  GradientBuckets buckets_;
  std::unique_ptr<Optimizer> optimizer_;
  BatchLoader train_;
  BatchLoader test_;
  Trainer trainer_;
};

void average(std::vector<std::unique_ptr<LoneRank>>& ranks) {
  for (std::size_t i = 0; i < ranks[0]->values().size(); ++i) {
    double sum = 0;
    for (const auto& rank : ranks) sum += rank->values()[i];
    for (const auto& rank : ranks)
      rank->values()[i] = static_cast<float>(sum / static_cast<double>(ranks.size()));
  }
}

// The complete state of the averaged network after `steps` steps.
TrainedState averaged(ThreadTraining training, int steps) {
  TrainedState all;
  training.steps = steps;
  training.after_step = [&](int rank, int step, Trainer& trainer, Network& network, Optimizer&) {
    if (step < steps) return;
    trainer.evaluate();
    if (rank == 0) all = trained_state(network);
  };
  train_on_threads(training);
  return all;
}

void expect_near(const TrainedState& state, const TrainedState& expected, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(state.size(), expected.size());
  for (const auto& [name, values] : expected)
    EXPECT_LE(distance(state.at(name), values), tolerance) << what << ": " << name;
}

TEST(LocalSgd, EqualsLoneRanksWithAveragedParameters) {
  constexpr int kEvery = 3;
  for (const int count : Thinning().taken({3, 2, 4})) {
    const Grays dataset(kTinyImage, 512);
    backend_for({}).set_threads(1);
    std::vector<std::unique_ptr<LoneRank>> ranks;
    for (int rank = 0; rank < count; ++rank)
      ranks.push_back(std::make_unique<LoneRank>(dataset, Shard{.rank = rank, .size = count}, 0.02));
    ThreadTraining training{.ranks = count, .average_every = kEvery};
    for (int step = 1; step <= 7; ++step) {
      for (const auto& rank : ranks) rank->step();
      if (step % kEvery == 0) average(ranks);
      if (step == 6) {
        expect_near(averaged(training, step), ranks[0]->state(), 1e-6,
                    fmt::format("{} ranks, averaged", count));
      }
    }
    average(ranks);  // an evaluation's average, in the middle of a period
    expect_near(averaged(training, 7), ranks[0]->state(), 1e-6, fmt::format("{} ranks", count));
  }
}

// A step of plain SGD is linear in the gradient.
TEST(LocalSgd, AveragingEachStepEqualsAveragingGradientsWithoutMomentum) {
  for (const int ranks : Thinning().taken({3, 1, 2, 4})) {
    ThreadTraining training{.ranks = ranks, .accumulation = 2, .optimizer = SgdOptions{.momentum = 0}};
    const TrainedState gradients = averaged(training, 10);
    training.average_every = 1;
    expect_near(averaged(training, 10), gradients, 1e-5, fmt::format("{} ranks", ranks));
  }
}

TEST(LocalSgd, StartsAfterTheConfiguredStep) {
  ThreadTraining training{.ranks = 2};
  const TrainedState synchronous = averaged(training, 5);
  training.average_every = 4;
  training.average_after = 5;
  EXPECT_EQ(averaged(training, 5), synchronous) << "synchronous steps, to the same bits";
  training.average_after = 4;
  EXPECT_NE(averaged(training, 5), synchronous);
}

BucketOptions with_codec(const ExchangeKind& kind, std::vector<ExchangeSetting> settings = {}) {
  return {.first_bytes = 256,
          .middle_bytes = 4096,
          .last_bytes = 256,
          .exchange = {.kind = &kind, .settings = std::move(settings)},
          .codecs = {.compress_within_node = true}};
}

// Right after an average every rank has the same parameters, and at the end the same digest. The loss falls.
TEST(LocalSgd, EveryRankHasTheSameBitsWithAnyCodec) {
  const BucketOptions all[] = {{},
                               with_codec(kInt8Codec),
                               with_codec(kPowerSgdCodec, {{"rank", 2}, {"start_step", 2}}),
                               with_codec(kTopKCodec, {{"density", 0.1}}),
                               with_codec(kSignCodec)};
  Thinning thinning;
  for (const BucketOptions& buckets : all) {
    for (const Precision precision : thinning.taken({Precision::fp32, Precision::fp16, Precision::bf16})) {
      ThreadTraining training{.ranks = 3,
                              .steps = 22,
                              .precision = precision,
                              .buckets = buckets,
                              .average_every = 4,
                              .average_after = 2};
      std::vector<std::vector<float>> values(3);
      std::vector<double> first_loss(3);
      training.after_step = [&](int rank, int step, Trainer& trainer, Network& network, Optimizer&) {
        const std::span<const float> now = network.values();
        if (step == 14) values[static_cast<std::size_t>(rank)].assign(now.begin(), now.end());
        if (step == 1) first_loss[static_cast<std::size_t>(rank)] = trainer.evaluate().loss;
      };
      const std::vector<TrainedRank> trained = train_on_threads(training);
      const std::string what =
          fmt::format("{}, precision {}", buckets.exchange.describe(), static_cast<int>(precision));
      for (std::size_t rank = 1; rank < 3; ++rank) {
        EXPECT_EQ(values[rank], values[0]) << what << ", after an average, rank " << rank;
        EXPECT_EQ(trained[rank].digest, trained[0].digest) << what << ", rank " << rank;
      }
      if (kOneOf == 1) {
        EXPECT_LT(trained[0].evaluation.loss, 0.95 * first_loss[0]) << what;
      }
    }
  }
}

// A rank that drives no codec, because its node has several ranks, scales its differences like the others.
TEST(LocalSgd, RanksWithoutACodecOfTheirOwnHaveTheSameBits) {
  for (const Precision precision : {Precision::fp16, Precision::bf16}) {
    BucketOptions buckets = with_codec(kInt8Codec);
    buckets.codecs.compress_within_node = false;
    ThreadTraining training{.ranks = 3,
                            .node_of = {0, 0, 1},
                            .steps = 10,
                            .precision = precision,
                            .buckets = buckets,
                            .average_every = 4,
                            .average_after = 2};
    std::vector<std::vector<float>> values(3);
    training.after_step = [&](int rank, int step, Trainer&, Network& network, Optimizer&) {
      const std::span<const float> now = network.values();
      if (step == 10) values[static_cast<std::size_t>(rank)].assign(now.begin(), now.end());
    };
    train_on_threads(training);
    for (std::size_t rank = 1; rank < 3; ++rank)
      EXPECT_EQ(values[rank], values[0]) << "rank " << rank << ", precision " << static_cast<int>(precision);
  }
}

// A weight that starts at 0 changes by less than the smallest fp16 number.
TEST(LocalSgd, SmallDifferencesSurviveFp16) {
  const auto weights_with = [](const BucketOptions& buckets) {
    std::vector<float> weights;
    ThreadTraining training{.ranks = 2,
                            .steps = 4,
                            .buckets = buckets,
                            .learning_rate = 1e-7,
                            .average_every = 2,
                            .average_after = 2};
    training.after_step = [&](int rank, int step, Trainer&, Network& network, Optimizer&) {
      for (const Parameter& parameter : network.parameters()) {
        if (parameter.name != "fc1.weight") continue;
        const auto elements = static_cast<std::size_t>(parameter.layout.physical_elements());
        if (step == 1) std::fill_n(parameter.value, elements, 0.0f);
        if (step == 4 && rank == 0) weights.assign(parameter.value, parameter.value + elements);
      }
    };
    train_on_threads(training);
    return weights;
  };
  const std::vector<float> exact = weights_with({}), sent = weights_with(with_codec(kFp16Codec));
  float largest = 0;
  for (const float weight : exact) largest = std::max(largest, std::abs(weight));
  EXPECT_GT(largest, 0);
  EXPECT_LT(largest, 0x1p-24f);
  for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(sent[i], exact[i], 1e-2f * largest) << i;
}

// The sum of differences over ranks would overflow the type of gradients.
TEST(LocalSgd, LargeDifferencesInHalfPrecisionAreFinite) {
  ThreadTraining training{.ranks = 4, .steps = 2, .precision = Precision::fp16, .average_every = 2};
  std::vector<float> averages(4);
  training.after_step = [&](int rank, int step, Trainer&, Network& network, Optimizer&) {
    for (const Parameter& parameter : network.parameters()) {
      if (parameter.name != "fc1.weight") continue;
      if (step == 1) parameter.value[0] += 1000;
      if (step == 2) averages[static_cast<std::size_t>(rank)] = parameter.value[0];
    }
  };
  train_on_threads(training);
  for (const float average : averages) EXPECT_NEAR(average, 1000, 2);
}

// A codec's gradient residuals are no differences of parameters: they would be added without a learning rate.
TEST(LocalSgd, DropsGradientResiduals) {
  ThreadTraining training{.ranks = 2,
                          .buckets = with_codec(kTopKCodec, {{"density", 0.01}}),
                          .learning_rate = 1e-6,
                          .average_every = 2,
                          .average_after = 6};
  const TrainedState before = averaged(training, 6), after = averaged(training, 8);
  expect_near(after, before, 1e-3, "two steps at a rate of 1e-6");
}

// A rank that overflows skips the step and halves its scale; its peers do not.
TEST(LocalSgd, RankThatOverflowsSkipsOnlyItsOwnStep) {
  ThreadTraining training{.ranks = 2,
                          .steps = 8,
                          .precision = Precision::fp16,
                          .loss_scale = {.initial = 1024, .rule = {.interval = 1000}},
                          .average_every = 4};
  std::vector<StepControl> controls(2);
  training.after_step = [&](int rank, int step, Trainer&, Network&, Optimizer& optimizer) {
    Stream stream({}, StreamUse::compute);
    StepControl control = optimizer.read_control(stream);
    if (rank == 1 && step == 2) {
      control.loss_scale = 0x1p40f;
      optimizer.restore_control(stream, control);
    }
    if (step == 8) controls[static_cast<std::size_t>(rank)] = control;
  };
  const std::vector<TrainedRank> trained = train_on_threads(training);
  EXPECT_EQ(trained[1].digest, trained[0].digest);
  EXPECT_EQ(controls[0].step, 9) << "no step was skipped";
  EXPECT_EQ(controls[0].loss_scale, 1024);
  EXPECT_LT(controls[1].step, 9) << "some were skipped";
  EXPECT_LT(controls[1].loss_scale, 0x1p40f);
}

// skipped_steps of a training whose loss scale is too large at first. All steps are synchronous.
std::int64_t skipped_before_local_steps(std::int64_t average_every) {
  class Epoch final : public TrainingObserver {
   public:
    void epoch_over(const EpochRecord& record) override { skipped = record.skipped_steps; }
    std::int64_t skipped = 0;
  };
  ThreadTraining training{.ranks = 2,
                          .precision = Precision::fp16,
                          .loss_scale = {.initial = 0x1p30, .rule = {.interval = 1000}},
                          .average_every = average_every,
                          .average_after = 1000};
  std::vector<std::int64_t> skipped(2);
  training.after_step = [&](int rank, int, Trainer& trainer, Network&, Optimizer&) {
    Epoch epoch;
    trainer.fit({&epoch});
    skipped[static_cast<std::size_t>(rank)] = epoch.skipped;
  };
  train_on_threads(training);
  EXPECT_EQ(skipped[1], skipped[0]);
  return skipped[0];
}

TEST(LocalSgd, SynchronousStepsThatAllRanksSkipCountOnce) {
  const std::int64_t skipped = skipped_before_local_steps(0);
  EXPECT_GT(skipped, 0);
  EXPECT_EQ(skipped_before_local_steps(4), skipped);
}

// The step after which a checkpoint is saved that is due after the second step. All steps are synchronous.
std::int64_t saved_before_local_steps(std::int64_t average_every) {
  class StopsOnceSaved final : public TrainingObserver {
   public:
    bool goes_on() override { return !saved; }
    bool saved = false;
  };
  StopSignals& signals = StopSignals::of_process();
  const TemporaryFolder folder("keeper");
  const std::shared_ptr<ThreadHub> hub = make_thread_hub(2);
  ThreadTraining training{.ranks = 2, .average_every = average_every, .average_after = 1000};
  std::vector<std::int64_t> steps(2);
  training.after_step = [&](int rank, int, Trainer& trainer, Network&, Optimizer&) {
    const std::unique_ptr<Communicator> host = make_thread_communicator(hub, rank);
    StopsOnceSaved stop;
    CheckpointKeeper keeper({.trainer = trainer,
                             .host = *host,
                             .signals = signals,
                             .device = trainer.device(),
                             .waiting = [&](bool) { stop.saved = true; }},
                            {.minutes = 1e-9}, folder.path(), Manifest{.test_accuracy = {}, .files = {}});
    trainer.fit({&keeper, &stop});
    steps[static_cast<std::size_t>(rank)] = trainer.steps();
  };
  train_on_threads(training);
  EXPECT_EQ(steps[1], steps[0]);
  return steps[0];
}

// Ranks agree on requests with the next step, as without local SGD: they do not wait for it after each step.
TEST(LocalSgd, SynchronousStepsDoNotWaitForAnAgreement) {
  EXPECT_EQ(saved_before_local_steps(0), 3);
  EXPECT_EQ(saved_before_local_steps(4), 3);
}

// Between averages, right after one, and after an evaluation.
TEST(LocalSgd, VisitorThatWritesNothingChangesNothing) {
  class Nothing final : public StateVisitor {
   public:
    bool writes() const override { return true; }
    void tensor(const StateTensor&, StateScope) override {}
    void value(const std::string&, StateScope, StateValue) override {}
  };
  const auto digest_with = [](bool visits) {
    ThreadTraining training{.ranks = 2, .steps = 8, .average_every = 4};
    training.after_step = [visits](int, int step, Trainer& trainer, Network&, Optimizer&) {
      if (step == 6) trainer.evaluate();
      Nothing nothing;
      if (visits && (step == 2 || step == 4 || step == 6)) trainer.visit_state(nothing);
    };
    return train_on_threads(training)[0].digest;
  };
  EXPECT_EQ(digest_with(true), digest_with(false));
}

// No rank hangs or continues: the next average, or an earlier evaluation, ends the training on all ranks.
TEST(LocalSgd, NonFiniteLossEndsTheTrainingOnAllRanks) {
  for (const int steps : {8, 3}) {
    ThreadTraining training{.ranks = 3, .steps = steps, .average_every = 4};
    std::vector<int> last(3);
    training.after_step = [&](int rank, int step, Trainer&, Network& network, Optimizer&) {
      last[static_cast<std::size_t>(rank)] = step;
      if (rank == 1 && step == 1) network.values()[0] = std::numeric_limits<float>::quiet_NaN();
    };
    std::string error = message_of<std::exception>([&] { train_on_threads(training); });
    error.erase(0, error.find(" threw: "));  // run_thread_ranks() names the rank that threw
    expect_parts(error, {"rank 1", "loss"});
    for (const char* finite : {"rank 0", "rank 2"}) EXPECT_EQ(error.find(finite), std::string::npos) << error;
    EXPECT_EQ(last, std::vector<int>(3, 3)) << "step 4 averages";
  }
}

}  // namespace
}  // namespace lockstep
