// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/loss.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "tests/cuda_emulator/device_memory.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

struct LossOutcome {
  LossSums sums;
  Values gradient;
};

struct LossBatch {
  DType type = DType::f32;
  std::int64_t classes = 0;
  Values logits;
  std::vector<std::int32_t> labels;
  Values weights;
  Values shares = {};
  float label_smoothing = 0;
  float gradient_scale = 0.25f;
  float loss_scale = 1;

  static LossBatch random(DType type, std::int64_t samples, std::int64_t classes) {
    LossBatch batch{.type = type,
                    .classes = classes,
                    .logits = random_values(samples * classes, "logits"),
                    .weights = random_values(samples, "weights"),
                    .shares = random_values(samples, "shares")};
    for (float& share : batch.shares) share = 0.5f + 0.5f * share;
    if (samples % 2 == 1) batch.shares.clear();
    for (float& logit : batch.logits) logit = rounded(3 * logit, type);
    for (float& weight : batch.weights) weight = 1 + 0.5f * weight;
    for (std::int64_t i = 0; i < samples; ++i) {
      batch.labels.push_back(static_cast<std::int32_t>(i * 7 % classes));
      if (i % 5 == 3) batch.weights[static_cast<std::size_t>(i)] = 0;
    }
    return batch;
  }

  LossOutcome on_cpu() const {
    Stream stream(Device{}, StreamUse::compute);
    LossOutcome outcome{.gradient = Values(logits.size())};
    backend_for(Device{}).softmax_cross_entropy(stream, {.batch = static_cast<std::int64_t>(labels.size()),
                                                         .classes = classes,
                                                         .logits = logits.data(),
                                                         .labels = labels.data(),
                                                         .weights = weights.data(),
                                                         .shares = shares.empty() ? nullptr : shares.data(),
                                                         .label_smoothing = label_smoothing,
                                                         .gradient_scale = gradient_scale * loss_scale,
                                                         .logits_gradient = outcome.gradient.data(),
                                                         .sums = &outcome.sums});
    return outcome;
  }

  enum class Gradient { apart, in_place, none };
  LossOutcome emulated(Gradient where = Gradient::apart) const {
    Stream stream(Device{}, StreamUse::compute);
    const auto samples = static_cast<std::int64_t>(labels.size());
    const DeviceMemory input(logits, type), output(logits.size() * size_of(type)), label(labels),
        weight(weights, DType::f32), share(shares.empty() ? Values(1) : shares, DType::f32),
        scale(std::vector<float>{loss_scale}), sums(sizeof(LossSums)),
        scratch(cuda_loss_scratch_bytes(samples));
    const DeviceMemory& gradient = where == Gradient::in_place ? input : output;
    cuda_softmax_cross_entropy(stream,
                               {.batch = samples,
                                .classes = classes,
                                .type = type,
                                .logits = input.data(),
                                .labels = label.as<const std::int32_t>(),
                                .weights = weight.as<const float>(),
                                .shares = shares.empty() ? nullptr : share.as<const float>(),
                                .label_smoothing = label_smoothing,
                                .gradient_scale = gradient_scale,
                                .loss_scale = loss_scale == 1 ? nullptr : scale.as<const float>(),
                                .logits_gradient = where == Gradient::none ? nullptr : gradient.data(),
                                .sums = sums.as<LossSums>(),
                                .scratch = scratch.data()});
    return {.sums = *sums.as<LossSums>(), .gradient = gradient.values(type)};
  }
};

Values joined(const LossOutcome& outcome) {
  Values all = outcome.gradient;
  all.insert(all.end(), {outcome.sums.loss, outcome.sums.weight, static_cast<float>(outcome.sums.correct),
                         static_cast<float>(outcome.sums.samples)});
  return all;
}

TEST(SoftmaxCrossEntropy, EqualsTheCpu) {
  Thinning thinning;
  for (const DType type : kElementTypes) {
    for (const float smoothing : {0.0f, 0.1f}) {
      for (const auto& [samples, classes] :
           {std::pair{1, 1}, {1, 10}, {5, 3}, {33, 101}, {7, 1000}, {300, 10}}) {
        if (!thinning.takes()) continue;
        SCOPED_TRACE(fmt::format("{} samples of {} classes in {}, smoothing {}", samples, classes,
                                 name_of(type), smoothing));
        LossBatch batch = LossBatch::random(type, samples, classes);
        batch.label_smoothing = smoothing;
        batch.loss_scale = smoothing == 0 ? 1.0f : 1024.0f;
        const LossOutcome expected = batch.on_cpu();
        LossOutcome actual;
        in_any_order([&] {
          actual = batch.emulated();
          return joined(actual);
        });
        EXPECT_NEAR(actual.sums.loss, expected.sums.loss, 1e-6 * std::abs(expected.sums.loss) + 1e-6);
        EXPECT_FLOAT_EQ(actual.sums.weight, expected.sums.weight);
        EXPECT_EQ(actual.sums.correct, expected.sums.correct);
        EXPECT_EQ(actual.sums.samples, expected.sums.samples);
        expect_near(actual.gradient, widen(expected.gradient), 1e-6 + 1.01 * precision_of(type),
                    batch.loss_scale * 1e-7);

        EXPECT_EQ(joined(batch.emulated(LossBatch::Gradient::in_place)), joined(actual));
        const LossSums alone = batch.emulated(LossBatch::Gradient::none).sums;
        EXPECT_EQ(alone.loss, actual.sums.loss);
      }
    }
  }
}

// As many samples as the pixels of a small image: several blocks sum them.
TEST(SoftmaxCrossEntropy, SumsOfManySamplesEqualTheCpu) {
  const LossBatch batch = LossBatch::random(DType::f32, 3 * 4096 + 5, 2);
  const LossSums expected = batch.on_cpu().sums, actual = batch.emulated(LossBatch::Gradient::none).sums;
  EXPECT_NEAR(actual.loss, expected.loss, 1e-6 * std::abs(expected.loss));
  EXPECT_FLOAT_EQ(actual.weight, expected.weight);
  EXPECT_EQ(actual.correct, expected.correct);
  EXPECT_EQ(actual.samples, expected.samples);
}

TEST(SoftmaxCrossEntropy, TheFirstOfEqualLogitsIsThePrediction) {
  LossBatch batch{.classes = 70, .logits = Values(70 * 3, 1.0f), .labels = {0, 1, 69}, .weights = {1, 1, 1}};
  batch.logits[2 * 70 + 69] = 2;
  EXPECT_EQ(batch.emulated().sums.correct, 2);
}

TEST(SoftmaxCrossEntropy, ExtremeLogitsStayFiniteAndNansReachTheLoss) {
  const float huge = std::numeric_limits<float>::max() / 4;
  LossBatch batch{.classes = 2,
                  .logits = {1e4f, -1e4f, 1e4f, -1e4f, -huge, huge, -1e30f, -1e30f},
                  .labels = {0, 1, 1, 0},
                  .weights = {1, 1, 1, 1},
                  .gradient_scale = 1};
  const LossOutcome outcome = batch.emulated();
  EXPECT_NEAR(outcome.sums.loss, 2e4 + std::log(2.0), 1e-2);
  EXPECT_EQ(outcome.gradient, (Values{0, 0, 1, -1, 0, 0, -0.5f, 0.5f}));
  EXPECT_EQ(outcome.sums.correct, 3);
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    batch.logits[4] = bad;
    EXPECT_TRUE(std::isnan(batch.emulated().sums.loss)) << bad;
    EXPECT_EQ(batch.emulated().sums.correct, 3 - 1) << bad;
  }
}

TEST(SoftmaxCrossEntropy, TheGradientIsFiniteExactlyIfTheLossIs) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float smoothing : {0.0f, 0.1f}) {
    for (const std::size_t place : {0, 1}) {
      for (const float logit : {-kInfinity, kInfinity, -3e38f}) {
        for (const DType type : kElementTypes) {
          SCOPED_TRACE(fmt::format("{} at {}, {}, smoothing {}", logit, place, name_of(type), smoothing));
          LossBatch batch{.type = type,
                          .classes = 3,
                          .logits = {3e38f, 3e38f, 3e38f, 0, 1, 2},
                          .labels = {0, 0},
                          .weights = {1, 1},
                          .label_smoothing = smoothing};
          batch.logits[place] = logit;
          for (float& value : batch.logits) value = rounded(value, type);
          const LossOutcome expected = batch.on_cpu();
          const LossOutcome outcome = batch.emulated();
          EXPECT_EQ(std::isfinite(outcome.sums.loss), std::isfinite(expected.sums.loss));
          for (std::size_t k = 0; k < batch.logits.size(); ++k)
            EXPECT_EQ(std::isfinite(outcome.gradient[k]), k >= 3 || std::isfinite(outcome.sums.loss)) << k;
        }
      }
    }
  }
}

TEST(SoftmaxCrossEntropy, ALabelOutsideTheClassesMakesTheLossNaN) {
  for (const std::int32_t label : {-1, 10, 1 << 30}) {
    LossBatch batch = LossBatch::random(DType::f16, 5, 10);
    batch.labels[2] = label;
    const LossOutcome outcome = batch.emulated();
    EXPECT_TRUE(std::isnan(outcome.sums.loss)) << label;
    EXPECT_TRUE(std::isnan(outcome.gradient[2 * 10])) << label;
    EXPECT_EQ(outcome.sums.samples, 4);
  }
}

TEST(SoftmaxCrossEntropy, AnEmptyBatchHasZeroSums) {
  const LossSums sums = LossBatch{.classes = 3}.emulated().sums;
  EXPECT_EQ(sums.loss, 0.0f);
  EXPECT_EQ(sums.samples, 0);
}

TEST(OutputLoss, EqualsTheCpu) {
  Stream stream(Device{}, StreamUse::compute);
  for (const DType type : kElementTypes) {
    for (const Loss loss : {Loss::binary_cross_entropy, Loss::mean_squared_error}) {
      for (const auto& [samples, classes, outputs] :
           {std::tuple{5, 2, 1}, {6, 2, 1}, {6, 5, 1}, {34, 2, 2}, {20, 70, 70}}) {
        if (classes > 2 && outputs == 1 && loss != Loss::mean_squared_error) continue;
        SCOPED_TRACE(fmt::format("{}, {} samples, {} outputs in {}", static_cast<int>(loss), samples, outputs,
                                 name_of(type)));
        LossBatch batch = LossBatch::random(type, samples, outputs);
        for (std::size_t i = 0; i < batch.labels.size(); ++i)
          batch.labels[i] = static_cast<std::int32_t>(i * 7 % static_cast<std::size_t>(classes));
        LossSums expected;
        Values expected_gradient(batch.logits.size());
        const Values loss_scale{1024.0f};
        OutputLoss a{.loss = loss,
                     .batch = samples,
                     .classes = classes,
                     .outputs = outputs,
                     .logits = batch.logits.data(),
                     .labels = batch.labels.data(),
                     .weights = batch.weights.data(),
                     .shares = batch.shares.empty() ? nullptr : batch.shares.data(),
                     .label_smoothing = 0.1f,
                     .gradient_scale = 0.25f,
                     .loss_scale = loss_scale.data(),
                     .logits_gradient = expected_gradient.data(),
                     .sums = &expected};
        backend_for(Device{}).output_loss(stream, a);
        const DeviceMemory input(batch.logits, type), output(batch.logits.size() * size_of(type)),
            label(batch.labels), weight(batch.weights, DType::f32),
            share(batch.shares.empty() ? Values(1) : batch.shares, DType::f32), scale(loss_scale, DType::f32),
            sums(sizeof(LossSums)), scratch(cuda_loss_scratch_bytes(samples));
        a.type = type;
        a.loss_scale = scale.as<const float>();
        a.logits = input.data();
        a.labels = label.as<const std::int32_t>();
        a.weights = weight.as<const float>();
        a.shares = batch.shares.empty() ? nullptr : share.as<const float>();
        a.logits_gradient = output.data();
        a.sums = sums.as<LossSums>();
        a.scratch = scratch.data();
        const Values gradient = in_any_order([&] {
          cuda_output_loss(stream, a);
          return output.values(type);
        });
        expect_near(gradient, widen(expected_gradient), 1e-6 + 1.01 * precision_of(type), 1e-4);
        EXPECT_NEAR(sums.as<LossSums>()->loss, expected.loss, 1e-6 * std::abs(expected.loss) + 1e-6);
        EXPECT_EQ(sums.as<LossSums>()->correct, expected.correct);
        EXPECT_EQ(sums.as<LossSums>()->samples, expected.samples);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
