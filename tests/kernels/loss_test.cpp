// SPDX-License-Identifier: Apache-2.0
#include "kernels/loss.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/text/enum_words.h"
#include "tests/kernels/kept_threads.h"
#include "tests/kernels/planned_memory.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

// The definition in double precision.
double reference_loss(const Doubles& logits, const std::vector<std::int32_t>& labels, const Values& weights,
                      double smoothing = 0, const Values& shares = {}) {
  const std::size_t classes = logits.size() / labels.size();
  double loss = 0;
  for (std::size_t sample = 0; sample < labels.size(); ++sample) {
    if (weights[sample] == 0) continue;
    const double* row = logits.data() + sample * classes;
    const double largest = *std::max_element(row, row + classes);
    double sum = 0;
    for (std::size_t k = 0; k < classes; ++k) sum += std::exp(row[k] - largest);
    const double log_sum = std::log(sum) + largest;
    for (std::size_t k = 0; k < classes; ++k) {
      const double share = shares.empty() ? 1 : static_cast<double>(shares[sample]);
      double on_label = static_cast<std::int32_t>(k) == labels[sample] ? share : 0;
      if (share < 1 && static_cast<std::int32_t>(k) == labels[sample ^ 1]) on_label += 1 - share;
      const double target = (1 - smoothing) * on_label + smoothing / static_cast<double>(classes);
      loss += weights[sample] * target * (log_sum - row[k]);
    }
  }
  return loss;
}

struct Outcome {
  LossSums sums;
  Values gradient;
};

struct Batch {
  std::int64_t classes = 0;
  Values logits;
  std::vector<std::int32_t> labels;
  Values weights;
  Values shares = {};  // empty: one label for each sample
  float gradient_scale = 0.25f;
  float label_smoothing = 0;
  DType type = DType::f32;
  float loss_scale = 0;  // 0: no loss scale

  static Batch random(std::int64_t samples, std::int64_t classes, float spread = 3) {
    Batch batch{.classes = classes,
                .logits = random_values(samples * classes, "logits"),
                .weights = random_values(samples, "weights")};
    for (float& logit : batch.logits) logit *= spread;
    for (float& weight : batch.weights) weight = 1 + 0.5f * weight;
    for (std::int64_t i = 0; i < samples; ++i) {
      batch.labels.push_back(static_cast<std::int32_t>(i * 7 % classes));
    }
    return batch;
  }

  SoftmaxCrossEntropy arguments(const void* from, void* gradient, LossSums* sums) const {
    return {.batch = static_cast<std::int64_t>(labels.size()),
            .classes = classes,
            .type = type,
            .logits = from,
            .labels = labels.data(),
            .weights = weights.data(),
            .shares = shares.empty() ? nullptr : shares.data(),
            .label_smoothing = label_smoothing,
            .gradient_scale = gradient_scale,
            .loss_scale = loss_scale == 0 ? nullptr : &loss_scale,
            .logits_gradient = gradient,
            .sums = sums};
  }

  Outcome run() const {
    Stream stream(Device{}, StreamUse::compute);
    Outcome outcome{.sums = {.loss = -1, .weight = -1, .correct = -1, .samples = -1}};
    const GuardedMemory from(logits, type), gradient(logits.size() * size_of(type), type);
    backend_for(Device{}).softmax_cross_entropy(stream,
                                                arguments(from.data(), gradient.data(), &outcome.sums));
    EXPECT_TRUE(gradient.margin_intact());
    outcome.gradient = gradient.values();
    return outcome;
  }
};

void expect_same_bits(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(std::memcmp(&a.sums, &b.sums, sizeof(LossSums)), 0);
  EXPECT_EQ(a.gradient, b.gradient);
}

// Targets with two labels each, which are equal for some samples.
TEST(SoftmaxCrossEntropy, MixedTargetsMatchTheDefinitionAndItsSlopes) {
  for (const float smoothing : {0.0f, 0.1f}) {
    for (const auto& [samples, classes] : {std::pair{2, 3}, {34, 100}, {2500, 10}}) {
      SCOPED_TRACE(fmt::format("{} samples of {} classes, smoothing {}", samples, classes, smoothing));
      Batch batch = Batch::random(samples, classes);
      batch.label_smoothing = smoothing;
      batch.labels[1] = batch.labels[0];
      batch.shares = random_values(samples, "shares");
      for (float& share : batch.shares) share = 0.5f + 0.5f * share;
      batch.shares.back() = 1;
      const Outcome outcome = batch.run();
      const auto loss = [&](const Doubles& at) {
        return reference_loss(at, batch.labels, batch.weights, static_cast<double>(smoothing), batch.shares);
      };
      const Doubles logits = widen(batch.logits);
      EXPECT_NEAR(outcome.sums.loss, loss(logits), 1e-6 * samples * 10);
      const Doubles direction = widen(random_values(static_cast<std::int64_t>(logits.size()), "direction"));
      EXPECT_NEAR(dot(widen(outcome.gradient), direction),
                  batch.gradient_scale * slope(logits, direction, loss),
                  1e-5 * std::sqrt(static_cast<double>(samples)));
      Batch whole = batch, unmixed = batch;
      std::ranges::fill(whole.shares, 1.0f);
      unmixed.shares.clear();
      expect_same_bits(whole.run(), unmixed.run());
    }
  }
}

TEST(SoftmaxCrossEntropy, MatchesTheDefinitionAndItsSlopes) {
  for (const auto& [samples, classes] :
       {std::pair{1, 1}, {1, 10}, {5, 3}, {33, 100}, {7, 2000}, {2500, 10}, {20000, 2}}) {
    SCOPED_TRACE(fmt::format("{} samples of {} classes", samples, classes));
    const Batch batch = Batch::random(samples, classes);
    const Outcome outcome = batch.run();
    const auto loss = [&](const Doubles& at) { return reference_loss(at, batch.labels, batch.weights); };
    const Doubles logits = widen(batch.logits);
    EXPECT_NEAR(outcome.sums.loss, loss(logits), 1e-6 * samples * 10);
    EXPECT_NEAR(outcome.sums.weight, dot(widen(batch.weights), Doubles(batch.weights.size(), 1.0)),
                1e-6 * samples);
    EXPECT_EQ(outcome.sums.samples, samples);

    const Doubles direction = widen(random_values(static_cast<std::int64_t>(logits.size()), "direction"));
    EXPECT_NEAR(dot(widen(outcome.gradient), direction),
                batch.gradient_scale * slope(logits, direction, loss),
                1e-5 * std::sqrt(static_cast<double>(samples)));
    for (std::size_t i = 0; i < logits.size(); i += logits.size() / 5 + 1) {
      EXPECT_NEAR(outcome.gradient[i], batch.gradient_scale * slope_at(logits, i, loss), 2e-6) << "at " << i;
    }
  }
}

TEST(SoftmaxCrossEntropy, GradientOfEachSampleSumsToZero) {
  const Batch batch = Batch::random(50, 101);
  const Outcome outcome = batch.run();
  for (std::size_t sample = 0; sample < batch.labels.size(); ++sample) {
    double sum = 0;
    for (std::int64_t k = 0; k < batch.classes; ++k) sum += outcome.gradient[sample * 101 + k];
    EXPECT_NEAR(sum, 0, 1e-6);
  }
}

TEST(SoftmaxCrossEntropy, CountsSamplesWhoseLargestLogitIsTheLabels) {
  Batch batch{.classes = 3,
              .logits = {1, 2, 0,  //
                         1, 2, 0,  //
                         5, 5, 1,  // tie: the first class is the prediction
                         5, 5, 1,  //
                         -3, -2, -1},
              .labels = {1, 0, 0, 1, 2},
              .weights = {1, 1, 1, 1, 0.5f}};
  EXPECT_EQ(batch.run().sums.correct, 3);
  EXPECT_EQ(batch.run().sums.samples, 5);
}

TEST(SoftmaxCrossEntropy, SamplesOfZeroWeightChangeNothing) {
  const Batch batch = Batch::random(9, 10);
  const Outcome expected = batch.run();
  Batch padded = batch;
  const auto pad = [&](float logit) {
    padded.logits.insert(padded.logits.end(), 10, logit);
    padded.labels.push_back(0);
    padded.weights.push_back(0);
  };
  pad(1e30f);
  pad(std::numeric_limits<float>::quiet_NaN());
  Outcome outcome = padded.run();
  for (std::size_t i = batch.logits.size(); i < padded.logits.size(); ++i)
    EXPECT_EQ(outcome.gradient[i], 0.0f);
  outcome.gradient.resize(batch.logits.size());
  expect_same_bits(outcome, expected);

  std::ranges::fill(padded.weights, 0.0f);
  const LossSums nothing = padded.run().sums;
  EXPECT_EQ(nothing.loss, 0.0f);
  EXPECT_EQ(nothing.weight, 0.0f);
  EXPECT_EQ(nothing.correct, 0);
  EXPECT_EQ(nothing.samples, 0);
}

TEST(SoftmaxCrossEntropy, LabelSmoothingMatchesTheDefinitionAndItsSlopes) {
  for (const float smoothing : {0.1f, 0.5f, 1.0f}) {
    for (const auto& [samples, classes] : {std::pair{1, 1}, {5, 3}, {33, 100}, {7, 2000}}) {
      SCOPED_TRACE(fmt::format("{} samples of {} classes, smoothing {}", samples, classes, smoothing));
      Batch batch = Batch::random(samples, classes);
      batch.label_smoothing = smoothing;
      const Outcome outcome = batch.run();
      const auto loss = [&](const Doubles& at) {
        return reference_loss(at, batch.labels, batch.weights, smoothing);
      };
      const Doubles logits = widen(batch.logits);
      EXPECT_NEAR(outcome.sums.loss, loss(logits), 1e-6 * samples * 10);
      for (std::size_t i = 0; i < logits.size(); i += 1 + logits.size() / 40) {
        EXPECT_NEAR(outcome.gradient[i], batch.gradient_scale * slope_at(logits, i, loss), 2e-6) << i;
      }
    }
  }
}

// torch.nn.functional.cross_entropy([[1, 2, 3], [0.5, 0, -4]], [2, 1], label_smoothing=0.1, reduction="sum")
TEST(SoftmaxCrossEntropy, LabelSmoothingMatchesPyTorch) {
  const Batch batch{.classes = 3,
                    .logits = {1, 2, 3, 0.5f, 0, -4},
                    .labels = {2, 1},
                    .weights = {1, 1},
                    .label_smoothing = 0.1f};
  EXPECT_NEAR(batch.run().sums.loss, 1.605240715581064, 1e-6);
}

TEST(SoftmaxCrossEntropy, BothScalesMultiplyTheGradientAlone) {
  Batch batch = Batch::random(6, 10);
  const Outcome once = batch.run();
  batch.gradient_scale *= 1024;
  batch.loss_scale = 65536;
  const Outcome scaled = batch.run();
  EXPECT_EQ(std::memcmp(&scaled.sums, &once.sums, sizeof(LossSums)), 0);
  for (std::size_t i = 0; i < once.gradient.size(); ++i)
    EXPECT_EQ(scaled.gradient[i], 0x1p26f * once.gradient[i]);
}

// Computed in fp32 from the same logits; the gradient is rounded once.
TEST(SoftmaxCrossEntropy, SixteenBitLogitsGiveTheLossOfTheirValues) {
  for (const DType type : {DType::f16, DType::bf16}) {
    for (const auto& [samples, classes] : {std::pair{1, 1}, {5, 3}, {33, 100}, {2500, 10}}) {
      SCOPED_TRACE(fmt::format("{} samples of {} classes, {}", samples, classes, name_of(type)));
      Batch batch = Batch::random(samples, classes);
      batch.logits = rounded(batch.logits, type);
      batch.weights[0] = 0;
      batch.loss_scale = 1024;
      const Outcome expected = batch.run();
      batch.type = type;
      const Outcome outcome = batch.run();
      EXPECT_EQ(std::memcmp(&outcome.sums, &expected.sums, sizeof(LossSums)), 0);
      EXPECT_EQ(outcome.gradient, rounded(expected.gradient, type));

      const GuardedMemory in_place(batch.logits, type);
      Outcome same;
      Stream stream(Device{}, StreamUse::compute);
      backend_for(Device{}).softmax_cross_entropy(
          stream, batch.arguments(in_place.data(), in_place.data(), &same.sums));
      same.gradient = in_place.values();
      EXPECT_TRUE(in_place.margin_intact());
      expect_same_bits(same, outcome);
    }
  }
}

// The case that loss scaling exists for.
TEST(SoftmaxCrossEntropy, ALossScaleKeepsGradientsBelowTheRangeOfFp16) {
  Batch batch{.classes = 2, .logits = {10, 0}, .labels = {0}, .weights = {1}, .gradient_scale = 1e-4f};
  batch.type = DType::f16;
  EXPECT_EQ(batch.run().gradient, (Values{-0.0f, 0.0f}));
  batch.loss_scale = 65536;
  EXPECT_GT(batch.run().gradient[1], 0.0f);
}

TEST(SoftmaxCrossEntropy, ExtremeLogitsStayFinite) {
  const float huge = std::numeric_limits<float>::max() / 4;
  Batch batch{.classes = 2,
              .logits = {1e4f, -1e4f, 1e4f, -1e4f, -huge, huge, -1e30f, -1e30f},
              .labels = {0, 1, 1, 0},
              .weights = {1, 1, 1, 1},
              .gradient_scale = 1};
  const Outcome outcome = batch.run();
  EXPECT_NEAR(outcome.sums.loss, 2e4 + std::log(2.0), 1e-2);
  EXPECT_EQ(outcome.gradient, (Values{0, 0, 1, -1, 0, 0, -0.5f, 0.5f}));
  EXPECT_EQ(outcome.sums.correct, 3);
}

TEST(SoftmaxCrossEntropy, ANaNLogitMakesTheLossNaN) {
  for (const std::size_t place : {0, 4, 9}) {
    for (const std::int32_t label : {0, 4}) {
      Batch batch = Batch::random(1, 10);
      batch.labels = {label};
      batch.logits[place] = std::numeric_limits<float>::quiet_NaN();
      const Outcome outcome = batch.run();
      EXPECT_TRUE(std::isnan(outcome.sums.loss)) << place;
      EXPECT_EQ(outcome.sums.correct, 0) << place;
      EXPECT_EQ(outcome.sums.samples, 1);
    }
  }
}

// A single bad sample must not pass unnoticed: the check of gradients must detect it whenever the loss shows
// it.
TEST(SoftmaxCrossEntropy, TheGradientIsFiniteExactlyIfTheLossIs) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  struct Case {
    Values logits;  // of two samples with label 0; the second one is sound
    float label_smoothing;
    bool finite;
  };
  for (const Case& c : {Case{{-kInfinity, 1, 2, 0, 1, 2}, 0, false},
                        {{-kInfinity, 1, 2, 0, 1, 2}, 0.1f, false},
                        {{1, -kInfinity, 2, 0, 1, 2}, 0, true},
                        {{1, -kInfinity, 2, 0, 1, 2}, 0.1f, false},
                        {{1, kInfinity, 2, 0, 1, 2}, 0, false},
                        {{kInfinity, 1, 2, 0, 1, 2}, 0, false},
                        {{-kInfinity, -kInfinity, -kInfinity, 0, 1, 2}, 0, false},
                        {{-3e38f, 3e38f, 0, 0, 1, 2}, 0, false}}) {
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
      SCOPED_TRACE(fmt::format("{}, {}, {}; {} {}", c.logits[0], c.logits[1], c.logits[2], c.label_smoothing,
                               name_of(type)));
      const Batch batch{.classes = 3,
                        .logits = c.logits,
                        .labels = {0, 0},
                        .weights = {1, 1},
                        .label_smoothing = c.label_smoothing,
                        .type = type};
      const Outcome outcome = batch.run();
      EXPECT_EQ(std::isfinite(outcome.sums.loss), c.finite);
      for (std::size_t k = 0; k < 3; ++k) {
        EXPECT_EQ(std::isfinite(outcome.gradient[k]), c.finite) << k;
        EXPECT_TRUE(std::isfinite(outcome.gradient[3 + k])) << k;
      }
    }
  }
}

TEST(SoftmaxCrossEntropy, TheGradientMayReplaceTheLogitsOrBeOmitted) {
  const Batch batch = Batch::random(40, 300);
  const Outcome expected = batch.run();
  Stream stream(Device{}, StreamUse::compute);
  Outcome in_place{.gradient = batch.logits};
  float* data = in_place.gradient.data();
  backend_for(Device{}).softmax_cross_entropy(stream, batch.arguments(data, data, &in_place.sums));
  expect_same_bits(in_place, expected);
  Outcome left_out{.gradient = expected.gradient};
  backend_for(Device{}).softmax_cross_entropy(stream,
                                              batch.arguments(batch.logits.data(), nullptr, &left_out.sums));
  expect_same_bits(left_out, expected);
}

TEST(SoftmaxCrossEntropy, ThreadsChangeNoBit) {
  const Batch batch = Batch::random(3000, 17);
  Backend& backend = backend_for(Device{});
  const KeptThreads kept;
  backend.set_threads(1);
  const Outcome expected = batch.run();
  for (const int threads : {2, 3, 4}) {
    backend.set_threads(threads);
    expect_same_bits(batch.run(), expected);
  }
}

TEST(SoftmaxCrossEntropy, ALabelOutsideTheClassesIsNamedBeforeAnythingIsWritten) {
  for (const std::int32_t label : {-1, 10, 1 << 30}) {
    Batch batch = Batch::random(5, 10);
    batch.labels[3] = label;
    Stream stream(Device{}, StreamUse::compute);
    LossSums sums{.loss = 42};
    Values gradient(batch.logits.size(), 42.0f);
    const std::string message = message_of([&] {
      backend_for(Device{}).softmax_cross_entropy(
          stream, batch.arguments(batch.logits.data(), gradient.data(), &sums));
    });
    expect_parts(message, {"sample 3", fmt::format("label {}", label)});
    EXPECT_EQ(sums.loss, 42.0f);
    EXPECT_EQ(gradient, Values(batch.logits.size(), 42.0f));
  }
}

// The definition in double precision: the mean over the outputs, for one output or one per class.
double reference_output_loss(const OutputLoss& a, const Doubles& logits) {
  double loss = 0;
  for (std::int64_t i = 0; i < a.batch; ++i) {
    for (std::int64_t k = 0; k < a.outputs; ++k) {
      const double share = a.shares == nullptr ? 1 : static_cast<double>(a.shares[i]);
      const auto hit = [&](std::int32_t label) {
        return a.outputs == 1 ? static_cast<double>(label) : label == k ? 1.0 : 0.0;
      };
      double target = share * hit(a.labels[i]) + (share < 1 ? (1 - share) * hit(a.labels[i ^ 1]) : 0);
      const bool smooths = a.outputs > 1 || a.loss == Loss::binary_cross_entropy;
      const double smoothing = smooths ? static_cast<double>(a.label_smoothing) : 0;
      target =
          (1 - smoothing) * target + smoothing / static_cast<double>(std::max<std::int64_t>(a.outputs, 2));
      const double x = logits[static_cast<std::size_t>(i * a.outputs + k)], p = 1 / (1 + std::exp(-x));
      const double each = a.loss == Loss::binary_cross_entropy
                              ? -target * std::log(p) - (1 - target) * std::log(1 - p)
                              : (x - target) * (x - target);
      loss += static_cast<double>(a.weights[i]) * each / static_cast<double>(a.outputs);
    }
  }
  return loss;
}

// The arguments of a loss of this batch, whose logits are one for each output.
OutputLoss output_loss_of(const Batch& batch, Loss loss, std::int64_t classes, LossSums* sums) {
  return {.loss = loss,
          .batch = static_cast<std::int64_t>(batch.labels.size()),
          .classes = classes,
          .outputs = batch.classes,
          .type = batch.type,
          .labels = batch.labels.data(),
          .weights = batch.weights.data(),
          .shares = batch.shares.empty() ? nullptr : batch.shares.data(),
          .label_smoothing = batch.label_smoothing,
          .gradient_scale = batch.gradient_scale,
          .sums = sums};
}

TEST(OutputLoss, MatchesTheDefinitionAndItsSlopes) {
  Stream stream(Device{}, StreamUse::compute);
  for (const Loss loss : {Loss::binary_cross_entropy, Loss::mean_squared_error}) {
    for (const auto& [samples, classes, outputs] :
         {std::tuple{2, 2, 1}, {34, 2, 2}, {2500, 10, 10}, {2501, 2, 1}, {20000, 2, 2}}) {
      for (const float smoothing : {0.0f, 0.1f}) {
        SCOPED_TRACE(fmt::format("{}, {} samples of {} classes, {} outputs, smoothing {}", word_of(loss),
                                 samples, classes, outputs, smoothing));
        Batch batch = Batch::random(samples, outputs);
        for (std::size_t i = 0; i < batch.labels.size(); ++i)
          batch.labels[i] = static_cast<std::int32_t>(i * 7 % static_cast<std::size_t>(classes));
        batch.label_smoothing = smoothing;
        if (smoothing > 0 && samples % 2 == 0) {
          batch.shares = random_values(samples, "shares");
          for (float& share : batch.shares) share = 0.5f + 0.5f * share;
        }
        batch.weights.back() = 0;
        LossSums sums;
        OutputLoss a = output_loss_of(batch, loss, classes, &sums);
        const GuardedMemory from(batch.logits, DType::f32), gradient(batch.logits.size() * sizeof(float));
        a.logits = from.data();
        a.logits_gradient = gradient.data();
        backend_for(Device{}).output_loss(stream, a);
        EXPECT_TRUE(gradient.margin_intact());
        const auto definition = [&](const Doubles& at) { return reference_output_loss(a, at); };
        const Doubles logits = widen(batch.logits);
        EXPECT_NEAR(sums.loss, definition(logits), 1e-6 * samples * 10);
        EXPECT_EQ(sums.samples, samples - 1);
        const Doubles direction = widen(random_values(static_cast<std::int64_t>(logits.size()), "direction"));
        EXPECT_NEAR(dot(widen(gradient.values()), direction),
                    batch.gradient_scale * slope(logits, direction, definition),
                    1e-5 * std::sqrt(static_cast<double>(samples)));
        for (std::int64_t k = 0; k < outputs; ++k)
          EXPECT_EQ(gradient.values()[batch.logits.size() - 1 - static_cast<std::size_t>(k)], 0)
              << "weight 0";
        // In place.
        const Values apart = gradient.values();
        a.logits_gradient = from.data();
        backend_for(Device{}).output_loss(stream, a);
        EXPECT_EQ(from.values(), apart);
      }
    }
  }
}

TEST(OutputLoss, CountsTheClassThatASingleOutputMeans) {
  Stream stream(Device{}, StreamUse::compute);
  const auto correct = [&](Loss loss, std::int64_t classes, const Values& outputs,
                           const std::vector<std::int32_t>& labels) {
    Batch batch{.classes = 1, .logits = outputs, .labels = labels, .weights = Values(labels.size(), 1.0f)};
    LossSums sums;
    OutputLoss a = output_loss_of(batch, loss, classes, &sums);
    a.logits = batch.logits.data();
    backend_for(Device{}).output_loss(stream, a);
    return sums.correct;
  };
  const float nan = std::nanf("");
  EXPECT_EQ(correct(Loss::binary_cross_entropy, 2, {0.1f, -0.1f, 5, 0, nan}, {1, 0, 0, 0, 0}), 3);
  EXPECT_EQ(correct(Loss::mean_squared_error, 4, {0.4f, -3, 1.4f, 2.6f, 9, 9, nan}, {0, 0, 1, 3, 3, 2, 0}),
            5);
}

TEST(OutputLoss, ExtremeOutputsStayFiniteAndNansReachTheGradient) {
  Stream stream(Device{}, StreamUse::compute);
  Batch batch{.classes = 1, .logits = {1000, -1000, 1000}, .labels = {1, 0, 0}, .weights = {1, 1, 1}};
  LossSums sums;
  Values gradient(3);
  OutputLoss a = output_loss_of(batch, Loss::binary_cross_entropy, 2, &sums);
  a.logits = batch.logits.data();
  a.logits_gradient = gradient.data();
  backend_for(Device{}).output_loss(stream, a);
  EXPECT_FLOAT_EQ(sums.loss, 1000);
  EXPECT_EQ(gradient, (Values{0, 0, batch.gradient_scale}));
  batch.logits[1] = std::nanf("");
  backend_for(Device{}).output_loss(stream, a);
  EXPECT_TRUE(std::isnan(sums.loss) && std::isnan(gradient[1]) && !std::isnan(gradient[0]));
}

// A half that overflowed has an infinite loss with a finite slope.
TEST(OutputLoss, AnInfiniteLossHasNoFiniteGradient) {
  Stream stream(Device{}, StreamUse::compute);
  const auto gradient_of = [&](Loss loss, const Batch& batch) {
    LossSums sums;
    Values gradient(batch.logits.size());
    OutputLoss a = output_loss_of(batch, loss, 2, &sums);
    a.logits = batch.logits.data();
    a.logits_gradient = gradient.data();
    backend_for(Device{}).output_loss(stream, a);
    EXPECT_FALSE(std::isfinite(sums.loss));
    return gradient;
  };
  const float infinity = std::numeric_limits<float>::infinity();
  const Batch batch{.classes = 1,
                    .logits = {infinity, -infinity, 1, infinity},
                    .labels = {0, 1, 1, 1},
                    .weights = {1, 1, 1, 1}};
  const Values crossed = gradient_of(Loss::binary_cross_entropy, batch);
  EXPECT_TRUE(std::isnan(crossed[0]) && std::isnan(crossed[1]));
  EXPECT_TRUE(std::isfinite(crossed[2]));
  EXPECT_EQ(crossed[3], 0);
  const Values squared = gradient_of(
      Loss::mean_squared_error, {.classes = 1, .logits = {3e38f, 1}, .labels = {0, 1}, .weights = {1, 1}});
  EXPECT_TRUE(std::isnan(squared[0]) && std::isfinite(squared[1]));
}

TEST(OutputLoss, TheLossScaleMultipliesTheGradientAlone) {
  Stream stream(Device{}, StreamUse::compute);
  for (const Loss loss : {Loss::binary_cross_entropy, Loss::mean_squared_error}) {
    const Batch batch = Batch::random(34, 2);
    const float loss_scale = 1024;
    const auto run = [&](const float* scale) {
      LossSums sums;
      Values gradient(batch.logits.size());
      OutputLoss a = output_loss_of(batch, loss, 2, &sums);
      a.logits = batch.logits.data();
      a.loss_scale = scale;
      a.logits_gradient = gradient.data();
      backend_for(Device{}).output_loss(stream, a);
      return std::pair(sums, gradient);
    };
    const auto [sums_once, once] = run(nullptr);
    const auto [sums_scaled, scaled] = run(&loss_scale);
    EXPECT_EQ(std::memcmp(&sums_scaled, &sums_once, sizeof(LossSums)), 0);
    for (std::size_t i = 0; i < once.size(); ++i) EXPECT_EQ(scaled[i], loss_scale * once[i]);
  }
}

TEST(OutputLoss, RefusesOutputsThatDoNotSuitTheClasses) {
  Stream stream(Device{}, StreamUse::compute);
  const Batch batch = Batch::random(2, 1);
  LossSums sums;
  for (const auto& [loss, classes] :
       {std::pair{Loss::binary_cross_entropy, 3}, {Loss::mean_squared_error, 0}}) {
    OutputLoss a = output_loss_of(batch, loss, classes, &sums);
    a.logits = batch.logits.data();
    expect_parts(message_of<ConfigError>([&] { backend_for(Device{}).output_loss(stream, a); }),
                 {std::string(word_of(loss)), "1 outputs", fmt::format("{} classes", classes)});
  }
}

}  // namespace
}  // namespace lockstep
