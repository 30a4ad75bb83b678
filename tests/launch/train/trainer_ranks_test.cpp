// SPDX-License-Identifier: Apache-2.0
//
// The Trainer on 1, 2, 3 and 5 ranks. N ranks equal one rank with N times the accumulation, for any buckets,
// with and without overlap. Every rank ends with the same bits.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "launch/train/compatibility.h"
#include "tests/comm/keeps_its_share.h"
#include "tests/distance.h"
#include "tests/launch/train/state_of.h"
#include "tests/launch/train/thread_training.h"
#include "tests/message_of.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

// Small buckets, so that a step has many.
constexpr BucketOptions kSmallBuckets = {.first_bytes = 256, .middle_bytes = 4096, .last_bytes = 256};

// Few enough steps that differences stay rounding errors. A ReLU whose input is a rounding error away from
// zero passes its gradient in one order of sums and blocks it in another, and the effect grows eighteenfold
// in 30 steps. Fewer under a sanitizer, which checks only how ranks work together.
constexpr int kLongTraining = kOneOf == 1 ? 20 : 2;
// Steps of trainings whose loss scale is too large at first. The first ones are skipped.
constexpr int kScaledSteps = kOneOf == 1 ? 40 : 24;
// The last loss scale is larger unless every step is skipped; of 40 steps, unless most are.
float smallest_scale(float initial) { return std::max(1.0f, std::ldexp(initial, -kScaledSteps)); }

struct Share {
  int ranks;
  std::int64_t accumulation;
};

// Each share has the same number of micro-batches a step and must train the same parameters.
void expect_equal(ThreadTraining training, const std::vector<Share>& shares) {
  const auto states_of = [&](const Share& share) {
    training.ranks = share.ranks;
    training.accumulation = share.accumulation;
    return states_after(training, {1, kLongTraining});
  };
  const auto reference = states_of(shares.front());
  ASSERT_FALSE(reference.at(kLongTraining).empty());
  for (std::size_t i = 1; i < shares.size(); ++i) {
    const auto other = states_of(shares[i]);
    for (const auto& [steps, tolerance] : {std::pair{1, 1e-6}, std::pair{kLongTraining, 1e-4}}) {
      ASSERT_EQ(other.at(steps).size(), reference.at(steps).size());
      for (const auto& [name, values] : reference.at(steps)) {
        EXPECT_LE(distance(other.at(steps).at(name), values), tolerance)
            << training.network.name << ", " << name << " after " << steps << " steps on " << shares[i].ranks
            << " ranks";
      }
    }
  }
}

// The digest, after checking that it is the same on all ranks.
std::string digest_of(const ThreadTraining& training) {
  const std::vector<TrainedRank> trained = train_on_threads(training);
  for (std::size_t rank = 1; rank < trained.size(); ++rank) {
    EXPECT_EQ(trained[rank].digest, trained[0].digest) << "rank " << rank;
    EXPECT_EQ(trained[rank].evaluation.loss, trained[0].evaluation.loss) << "rank " << rank;
  }
  return trained[0].digest;
}

const std::vector<Share> kFour = {{1, 4}, {2, 2}, {4, 1}};
const std::vector<Share> kThree = {{1, 3}, {3, 1}};
const std::vector<Share> kFive = {{1, 5}, {5, 1}};
const ThreadTraining kMlp = {.network = {.name = "mlp"}};
const ThreadTraining kCnn = {};

TEST(TrainerRanks, MlpOnFourRanks) { expect_equal(kMlp, kFour); }
TEST(TrainerRanks, CnnOnFourRanks) { expect_equal(kCnn, kFour); }
TEST(TrainerRanks, CnnOnThreeRanks) { expect_equal(kCnn, kThree); }
TEST(TrainerRanks, CnnOnFiveRanks) { expect_equal(kCnn, kFive); }

TEST(TrainerRanks, DropoutAndLabelSmoothingOnFourRanks) {
  ThreadTraining training = kCnn;
  training.network.dropout = 0.5;
  training.label_smoothing = 0.1f;
  expect_equal(training, kFour);
}

TEST(TrainerRanks, AugmentationOnFourRanks) {
  ThreadTraining training = kCnn;
  training.augmentation = {.crop_padding = 2,
                           .horizontal_flip = true,
                           .color = {.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1}};
  expect_equal(training, kFour);
}

TEST(TrainerRanks, MixedImagesOnFourRanks) {
  ThreadTraining training = kCnn;
  training.augmentation = {.horizontal_flip = true, .mixup = 0.2, .cutmix = 1};
  expect_equal(training, kFour);
}

TEST(TrainerRanks, AdamWAndLarsOnThreeRanks) {
  ThreadTraining training = kCnn;
  training.learning_rate = 1e-3;
  training.optimizer = AdamWOptions{};
  expect_equal(training, kThree);
  training.learning_rate = 0.5;
  training.optimizer = LarsOptions{};
  expect_equal(training, kThree);
}

// The norm is that of the mean over all samples, hence equal on any number of ranks.
TEST(TrainerRanks, ClippedGradientsOnFourRanks) {
  ThreadTraining training = kCnn;
  training.clip_norm = 0.05;
  expect_equal(training, kFour);
  training.steps = 3;
  training.ranks = 2;
  const std::string clipped = digest_of(training);
  for (const ExchangeKind* codec : {&kFp16Codec, &kInt8Codec}) {
    training.buckets.exchange = {.kind = codec};
    training.buckets.codecs.compress_within_node = true;
    EXPECT_NE(digest_of(training), clipped) << "the codec has an effect; digest_of() compares the ranks";
  }
  training.buckets = kSmallBuckets;
  EXPECT_EQ(digest_of(training), clipped);
  training.clip_norm = 1e6;
  const std::string far = digest_of(training);
  training.clip_norm = 0;
  EXPECT_EQ(digest_of(training), far) << "a norm that is never reached changes nothing";
  EXPECT_NE(far, clipped);
}

// The configuration gives the same reason.
TEST(TrainerRanks, RefusesFeaturesThatExcludeEachOther) {
  const auto refusal = [](const ThreadTraining& training) {
    return message_of<std::exception>([&] { train_on_threads(training); });
  };
  const auto reason = [](Feature feature, Feature other) {
    return std::string(find_exclusion(feature, other)->reason);
  };
  expect_parts(refusal({.ranks = 2, .clip_norm = 1, .average_every = 2}),
               {"clip_norm", reason(Feature::clip_norm, Feature::average_every)});
  expect_parts(refusal({.ranks = 2, .tail = Tail::exact, .average_every = 2}),
               {"Tail::exact", reason(Feature::exact_tail, Feature::apart)});
}

// The change of all parameters after `steps` steps at rate 0.01.
std::vector<float> changes_by(ThreadTraining training, int steps) {
  const auto values_after = [&](int last) {
    std::vector<float> all;
    const TrainedState state = states_after(training, {last}).at(last);
    for (const auto& [name, tensor] : state) all.insert(all.end(), tensor.begin(), tensor.end());
    return all;
  };
  training.learning_rate = 0.01;
  std::vector<float> changes = values_after(steps);
  training.learning_rate = 0;  // a step of one micro-batch, which changes nothing
  training.accumulation = 1;
  const std::vector<float> before = values_after(1);
  for (std::size_t i = 0; i < changes.size(); ++i) changes[i] -= before[i];
  return changes;
}

// The reference also adds the gradients along the tree, in fp32.
void expect_sums_in_f32(const ThreadTraining& training, ThreadTraining along_tree, int steps) {
  along_tree.reproducible = true;
  const std::vector<float> wanted = changes_by(along_tree, std::min(steps, along_tree.steps));
  ThreadTraining narrow = training;
  narrow.buckets.sum_type = SumType::gradients;
  const double close = distance(changes_by(training, steps), wanted),
               far = distance(changes_by(narrow, steps), wanted);
  EXPECT_LT(close, 0.004);
  EXPECT_GT(far, kOneOf == 1 ? 0.008 : close);
}

TEST(TrainerRanks, ManyMicroBatchesOf16BitsAreSummedInFp32WithEveryStepEnd) {
  const ThreadTraining plain{.network = {.name = "cnn", .batch_norm = false},
                             .batch = 1,
                             .accumulation = kOneOf == 1 ? 128 : 16,
                             .steps = 2,
                             .precision = Precision::bf16,
                             .optimizer = SgdOptions{.momentum = 0}};
  expect_sums_in_f32(plain, plain, 2);
  ThreadTraining on_two = plain;
  on_two.ranks = 2;
  expect_sums_in_f32(on_two, on_two, 2);
  ThreadTraining apart = plain;
  apart.average_every = 2;
  expect_sums_in_f32(apart, plain, 2);
  // Two delayed steps apply the gradients of one.
  ThreadTraining delayed = plain, one_step = plain;
  delayed.buckets.delayed = true;
  one_step.steps = 1;
  expect_sums_in_f32(delayed, one_step, 2);
}

// In fp16 clipping applies to unscaled gradients, and a step that overflows is skipped.
TEST(TrainerRanks, ClippingDoesNotDependOnTheLossScale) {
  ThreadTraining training = kCnn;
  training.precision = Precision::fp16;
  training.ranks = 2;
  training.clip_norm = 0.05;
  training.optimizer = SgdOptions{.momentum = 0};
  std::vector<std::vector<float>> changes;
  for (const double scale : {256.0, 1024.0, 0x1p40}) {
    const bool overflows = scale > 1e6;
    training.loss_scale = {.initial = scale, .rule = {.interval = 2000}};
    training.steps = overflows ? 40 : 3;
    std::int64_t taken = 0;
    training.after_step = [&](int rank, int, Trainer&, Network&, Optimizer& optimizer) {
      Stream stream({}, StreamUse::compute);
      if (rank == 0) taken = optimizer.read_control(stream).step - 1;
    };
    digest_of(training);
    EXPECT_TRUE(overflows ? taken > 0 && taken < 40 : taken == 3) << taken;
    if (overflows) continue;
    changes.push_back(changes_by(training, 3));
    const std::vector<float> first = changes_by(training, 1);
    EXPECT_NEAR(std::sqrt(std::inner_product(first.begin(), first.end(), first.begin(), 0.0)), 0.01 * 0.05,
                5e-6);
  }
  EXPECT_LE(distance(changes[1], changes[0]), 0.02);
}

// Batch norm uses statistics of one rank and micro-batch, so ranks do not equal accumulation. All ranks still
// end with the same bits, for any buckets, with and without overlap.
TEST(TrainerRanks, BucketsAndOverlapChangeNothing) {
  for (const auto& [ranks, name] : {std::pair{2, "cnn"}, {3, "resnet20"}}) {
    ThreadTraining training{
        .network = {.name = name}, .ranks = ranks, .accumulation = 2, .steps = ranks == 2 ? 4 : 2};
    const std::string digest = digest_of(training);
    training.buckets = kSmallBuckets;
    EXPECT_EQ(digest_of(training), digest) << name << " on " << ranks << " ranks";
    training.buckets.overlap = false;
    EXPECT_EQ(digest_of(training), digest) << name << " on " << ranks << " ranks, without overlap";
  }
}

TEST(TrainerRanks, TheDigestDependsOnTheSeedAndTheAugmentationButNotOnRecomputation) {
  ThreadTraining training{.network = {.name = "resnet20"}, .ranks = 2, .steps = 2};
  const std::string digest = digest_of(training);
  training.recompute = Recompute::blocks;
  EXPECT_EQ(digest_of(training), digest);
  training.seed = 2;
  EXPECT_NE(digest_of(training), digest);
  training.seed = 1;
  training.augmentation.crop_padding = 2;
  const std::string cropped = digest_of(training);
  EXPECT_NE(cropped, digest);
  training.augmentation.horizontal_flip = true;
  const std::string flipped = digest_of(training);
  EXPECT_NE(flipped, cropped);
  training.augmentation.color.contrast = 0.5;
  EXPECT_NE(digest_of(training), flipped);
}

// N ranks with synchronized batch norm train like one rank with N times the batch, running statistics
// included.
void expect_one_large_batch(ThreadTraining training, int ranks, int steps) {
  constexpr std::int64_t kBatch = 24;
  training.batch = kBatch;
  const auto whole = states_after(training, {1, steps});
  training.ranks = ranks;
  training.batch = kBatch / ranks;
  training.sync_batch_norm = true;
  const auto shared = states_after(training, {1, steps});
  training.sync_batch_norm = false;
  const auto apart = states_after(training, {1, steps});
  double most = 0, most_apart = 0;
  // A gradient of batch norm is a sum of 24 x 8 x 8 numbers that cancel: relative to the sum each rounding,
  // 2^-24, is sqrt(1536) times larger, and a step has several of them.
  for (const auto& [after, tolerance] : {std::pair{1, 1e-5}, std::pair{steps, 1e-4}}) {
    for (const auto& [name, values] : whole.at(after)) {
      EXPECT_LE(distance(shared.at(after).at(name), values), tolerance)
          << name << " after " << after << " steps on " << ranks << " ranks";
      most = std::max(most, distance(shared.at(after).at(name), values));
      most_apart = std::max(most_apart, distance(apart.at(after).at(name), values));
    }
  }
  EXPECT_GT(most_apart, 100 * most) << "without synchronization the result differs";
}

TEST(SyncBatchNorm, PlainNetworkEqualsOneLargeBatch) {
  const ThreadTraining training{.network = {.name = "cnn", .batch_norm = true}};
  for (const int ranks : {2, 3, 4}) expect_one_large_batch(training, ranks, 1);
}

// Shortcuts and strides without ReLU: after some steps an input of a ReLU would be a rounding error from
// zero, and its gradient would depend on the order of a sum.
void smooth_residual_network(Graph& graph) {
  constexpr ConvolutionOptions kKeeps{.channels = 8, .kernel = 3, .padding = 1, .bias = false};
  constexpr ConvolutionOptions kHalves{.channels = 16, .kernel = 3, .stride = 2, .padding = 1, .bias = false};
  const Value x = graph.batch_norm(graph.convolution(graph.input(), kKeeps, "conv1"), {}, "bn1");
  Value y = graph.batch_norm(graph.convolution(x, kKeeps, "conv2"), x, {}, "bn2");
  const Value shortcut = graph.batch_norm(graph.convolution(y, kHalves, "downsample"), {}, "bn3");
  y = graph.batch_norm(graph.convolution(y, kHalves, "conv3"), shortcut, {}, "bn4");
  y = graph.pooling(y, {.kind = PoolingKind::average, .global = true});
  graph.classify(graph.linear(y, {.features = graph.input_shape().classes}, "fc"));
}

TEST(SyncBatchNorm, ResidualNetworkEqualsOneLargeBatch) {
  for (const int ranks : Thinning().taken({3, 2}))
    expect_one_large_batch({.build = smooth_residual_network}, ranks, 10);
}

TEST(SyncBatchNorm, IsTheSameOnAllRanksWithRecomputationAndAccumulation) {
  ThreadTraining training{.network = {.name = "resnet20"}, .ranks = 3, .accumulation = 2, .steps = 2};
  training.sync_batch_norm = true;
  const std::string digest = digest_of(training);
  for (const Recompute& recompute : {Recompute::blocks, Recompute::every(6)}) {
    training.recompute = recompute;
    EXPECT_EQ(digest_of(training), digest) << "recomputation " << described(recompute);
  }
  training.buckets = kSmallBuckets;
  EXPECT_EQ(digest_of(training), digest);
}

// In half precision gradients overflow at first: all ranks skip the same steps, then train.
TEST(TrainerRanks, TooLargeLossScaleIsHalvedOnAllRanks) {
  for (const int ranks : Thinning().taken({3, 2})) {
    constexpr float kScale = 0x1p36f;
    std::vector<std::vector<float>> scales(static_cast<std::size_t>(ranks));
    ThreadTraining training{
        .ranks = ranks,
        .accumulation = 2,
        .steps = kScaledSteps,
        .precision = Precision::fp16,
        .buckets = kSmallBuckets,
        .loss_scale = {.initial = kScale, .rule = {.interval = 2000}},
        .after_step = [&](int rank, int, Trainer&, Network&, Optimizer& optimizer) {
          Stream stream({}, StreamUse::compute);
          scales[static_cast<std::size_t>(rank)].push_back(optimizer.read_control(stream).loss_scale);
        }};
    digest_of(training);
    for (const std::vector<float>& theirs : scales) EXPECT_EQ(theirs, scales[0]);
    EXPECT_EQ(scales[0].front(), kScale / 2);
    EXPECT_LT(scales[0].back(), kScale / 1024);
    EXPECT_GT(scales[0].back(), smallest_scale(kScale)) << "later steps are not skipped";
  }
}

// If an exchange gives ranks different gradients, only some ranks see an overflow. They agree, and all skip
// the same steps.
TEST(TrainerRanks, RanksWithDifferentGradientsSkipTheSameSteps) {
  constexpr int kSharing = 3;
  std::vector<std::vector<float>> scales(kSharing);
  BucketOptions buckets = kSmallBuckets;
  buckets.exchange.kind = &kKeepsItsShare;
  train_on_threads({.ranks = kSharing,
                    .steps = kScaledSteps,
                    .precision = Precision::fp16,
                    .buckets = buckets,
                    .loss_scale = {.initial = 0x1p30f, .rule = {.interval = 2000}},
                    .after_step = [&](int rank, int, Trainer&, Network&, Optimizer& optimizer) {
                      Stream stream({}, StreamUse::compute);
                      scales[static_cast<std::size_t>(rank)].push_back(
                          optimizer.read_control(stream).loss_scale);
                    }});
  for (const std::vector<float>& theirs : scales) EXPECT_EQ(theirs, scales[0]);
  EXPECT_LT(scales[0].back(), 0x1p24f);
  EXPECT_GT(scales[0].back(), smallest_scale(0x1p30f)) << "later steps are not skipped";
}

// Each epoch has a full batch and a short one. With five samples some of eight ranks have none.
TEST(TrainerRanks, ExactTailEqualsTheShortBatchOfOneRank) {
  constexpr std::int64_t kGlobal = 24;
  for (const std::int64_t left : Thinning().taken({5, 10})) {
    ThreadTraining training = kCnn;
    training.samples = kGlobal + left;
    training.tail = Tail::exact;
    training.steps = 4;
    const auto train = [&](int ranks, std::int64_t accumulation) {
      std::pair<Evaluation, TrainedState> trained;
      training.ranks = ranks;
      training.accumulation = accumulation;
      training.batch = kGlobal / (ranks * accumulation);
      training.after_step = [&](int rank, int step, Trainer& trainer, Network& network, Optimizer&) {
        if (rank == 0 && step == training.steps) trained.second = trained_state(network);
        if (step == 2) {
          double weight = -1;
          std::int64_t counted = -2;
          for (const auto& each : state_of(trainer).values) {
            if (each.name == "epoch.weight") weight = std::get<double>(each.value);
            if (each.name == "epoch.samples") counted = std::get<std::int64_t>(each.value);
          }
          EXPECT_NEAR(weight, static_cast<double>(counted), 1e-4) << "each sample counts once";
        }
      };
      trained.first = train_on_threads(training).front().evaluation;
      return trained;
    };
    const auto [alone, alones_state] = train(1, 1);
    for (const auto& [ranks, accumulation] :
         std::initializer_list<Share>{{2, 1}, {3, 1}, {4, 1}, {8, 1}, {2, 4}}) {
      const auto [evaluation, state] = train(ranks, accumulation);
      EXPECT_NEAR(evaluation.loss, alone.loss, 1e-6) << ranks << " ranks, " << left << " left";
      for (const auto& [name, values] : alones_state)
        EXPECT_LE(distance(state.at(name), values), 1e-6)
            << name << ", " << ranks << " ranks, " << left << " left";
    }
    training.tail = Tail::repeat;
    EXPECT_GT(std::abs(train(2, 1).first.loss - alone.loss), 1e-5)
        << "control: repeated samples change the loss";
  }
}

TEST(TrainerRanks, EvaluationCountsEverySampleOnceOnAnyRanks) {
  ThreadTraining training;
  training.steps = kOneOf == 1 ? 100 : 5;
  training.learning_rate = 0.05;
  for (const int ranks : {1, 2, 3}) {
    training.ranks = ranks;
    training.batch = 24 / ranks;  // equal steps on any ranks; the evaluated samples leave a short last batch
    const Evaluation evaluation = train_on_threads(training).front().evaluation;
    EXPECT_EQ(evaluation.samples, kMostEvaluated);
    if (kOneOf == 1) {
      EXPECT_GT(evaluation.accuracy, 0.9) << ranks << " ranks";
    }
  }
}

}  // namespace
}  // namespace lockstep
