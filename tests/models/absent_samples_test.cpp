// SPDX-License-Identifier: Apache-2.0
//
// Absent samples (padding, and images that cannot be decoded) have weight 0. The loader distributes their
// weight over the other samples, so that a batch's weights add up to its size. Loss and gradients must equal
// those of a batch without them.
#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "models/network_state.h"
#include "models/networks/networks.h"
#include "tests/distance.h"
#include "tests/models/network_fixture.h"
#include "tests/models/slopes.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

using Places = std::vector<std::size_t>;
using Build = std::function<void(Graph&)>;

constexpr std::size_t kPlaces = 6;
constexpr GraphInput kSixImages{.batch = kPlaces, .height = 8, .width = 8, .channels = 3, .classes = 5};
constexpr std::size_t kImageBytes = 8 * 8 * 3;

struct NamedPrecision {
  const char* name;
  Precision precision;
  double epsilon;  // spacing of the type at 1
};
constexpr NamedPrecision kPrecisions[] = {{"fp32", Precision::fp32, 0x1p-23},
                                          {"fp16", Precision::fp16, 0x1p-10},
                                          {"bf16", Precision::bf16, 0x1p-7}};

// The first, last, middle and most places of a batch.
const Places kAbsentPlaces[] = {{0}, {5}, {2, 3}, {0, 3, 5}, {1, 2, 3, 4, 5}};

void cnn_without_norm(Graph& graph) { cnn(graph, {.batch_norm = false}); }
void cnn_with_dropout(Graph& graph) { cnn(graph, {.batch_norm = false, .dropout = 0.3}); }
void cnn_with_norm(Graph& graph) { cnn(graph); }
void linear_layers(Graph& graph) { mlp(graph); }

// Frozen batch norm uses its running statistics.
void cnn_with_frozen_norm(Graph& graph) {
  cnn(graph);
  EXPECT_GT(graph.freeze("bn1"), 0);
  EXPECT_GT(graph.freeze("bn2"), 0);
}

NetworkFixture fixture_of(const Build& build, Precision precision, std::size_t batch = kPlaces) {
  GraphInput input = kSixImages;
  input.batch = static_cast<std::int64_t>(batch);
  return NetworkFixture(input, build, 1, Recompute::nothing, precision);
}

bool is_absent(const Places& absent, std::size_t place) { return std::ranges::count(absent, place) > 0; }

std::span<std::uint8_t> image_of(NetworkFixture& fixture, std::size_t place) {
  return fixture.input().images.as<std::uint8_t>().subspan(place * kImageBytes, kImageBytes);
}

// Sets the loader's weights: the absent samples' weight goes to the others.
void weigh(NetworkFixture& fixture, const Places& absent) {
  const std::span<float> weights = fixture.input().weights.as<float>();
  const auto all = static_cast<float>(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i)
    weights[i] = is_absent(absent, i) ? 0.0f : all / (all - static_cast<float>(absent.size()));
}

// Copies sample `from` of one batch to place `to` of another one.
void copy_sample(NetworkFixture& source, std::size_t from, NetworkFixture& target, std::size_t to) {
  std::ranges::copy(image_of(source, from), image_of(target, to).begin());
  target.input().labels.as<std::int32_t>()[to] = source.input().labels.as<std::int32_t>()[from];
}

std::map<std::string, std::vector<float>> statistics_of(NetworkFixture& fixture) {
  std::map<std::string, std::vector<float>> statistics;
  const StateSnapshot snapshot(fixture.network());
  for (const auto& entry : snapshot.entries())
    if (entry.name.find("running_") != std::string::npos) statistics[entry.name] = entry.values;
  return statistics;
}

struct Trained {
  double loss = 0;
  std::map<std::string, std::vector<float>> gradients;
  std::map<std::string, std::vector<float>> statistics;
  bool operator==(const Trained&) const = default;
};

Trained train(NetworkFixture& fixture) {
  Trained trained{.loss = fixture.forward_backward()};
  trained.gradients = fixture.plain_gradients();
  trained.statistics = statistics_of(fixture);
  return trained;
}

// Sums have another order, so each rounding may differ. Up to ten roundings follow one another in forward and
// backward of these networks.
void expect_same_training(const Trained& found, const Trained& expected, double epsilon) {
  const double bound = std::max(10 * epsilon, 1e-5);
  EXPECT_NEAR(found.loss, expected.loss, bound * expected.loss);
  ASSERT_EQ(found.gradients.size(), expected.gradients.size());
  for (const auto& [name, gradient] : expected.gradients)
    EXPECT_LT(distance(found.gradients.at(name), gradient), bound) << name;
}

TEST(AbsentSamples, PixelsAndLabelsChangeNoBit) {
  Thinning thinning;
  for (const Build& build : {Build(linear_layers), Build(cnn_without_norm), Build(cnn_with_dropout),
                             Build(cnn_with_frozen_norm)}) {
    for (const NamedPrecision& type : kPrecisions) {
      NetworkFixture fixture = fixture_of(build, type.precision);
      for (const Places& absent : kAbsentPlaces) {
        if (!thinning.takes()) continue;
        SCOPED_TRACE(fmt::format("{}, {} absent, first at {}", type.name, absent.size(), absent[0]));
        weigh(fixture, absent);
        const Trained expected = train(fixture);
        for (const std::size_t place : absent) {
          for (std::uint8_t& pixel : image_of(fixture, place)) pixel = static_cast<std::uint8_t>(255 - pixel);
          std::int32_t& label = fixture.input().labels.as<std::int32_t>()[place];
          label = (label + 1) % 5;
        }
        EXPECT_TRUE(train(fixture) == expected) << "pixels and labels of absent samples must not matter";
        for (const std::size_t place : absent) std::ranges::fill(image_of(fixture, place), std::uint8_t{0});
        EXPECT_TRUE(train(fixture) == expected) << "black images";
      }
    }
  }
}

TEST(AbsentSamples, LossAndGradientsEqualABatchWithoutThem) {
  Thinning thinning;
  for (const Build& build : {Build(linear_layers), Build(cnn_without_norm), Build(cnn_with_frozen_norm)}) {
    for (const NamedPrecision& type : kPrecisions) {
      for (const Places& absent : kAbsentPlaces) {
        if (!thinning.takes()) continue;
        SCOPED_TRACE(fmt::format("{}, {} absent, first at {}", type.name, absent.size(), absent[0]));
        NetworkFixture whole = fixture_of(build, type.precision);
        NetworkFixture others = fixture_of(build, type.precision, kPlaces - absent.size());
        std::size_t next = 0;
        for (std::size_t i = 0; i < kPlaces; ++i)
          if (!is_absent(absent, i)) copy_sample(whole, i, others, next++);
        weigh(whole, absent);
        expect_same_training(train(whole), train(others), type.epsilon);
      }
    }
  }
}

// Evaluation uses the running statistics, so an absent sample affects no other one.
TEST(AbsentSamples, EvaluationCountsOnlyPresentSamples) {
  for (const NamedPrecision& type : kPrecisions) {
    NetworkFixture whole = fixture_of(cnn_with_norm, type.precision);
    whole.forward();
    const auto evaluated = [&] {
      whole.network().forward(whole.input(), {.stream = whole.stream(), .mode = Mode::evaluation});
      return whole.network().loss(whole.stream());
    };
    for (const Places& absent : kAbsentPlaces) {
      const std::span<float> weights = whole.input().weights.as<float>();
      LossSums expected{};
      for (std::size_t i = 0; i < kPlaces; ++i) {  // one by one
        if (is_absent(absent, i)) continue;
        for (std::size_t j = 0; j < kPlaces; ++j) weights[j] = i == j ? 1.0f : 0.0f;
        const LossSums one = evaluated();
        expected.loss += one.loss;
        expected.correct += one.correct;
      }
      for (std::size_t i = 0; i < kPlaces; ++i) weights[i] = is_absent(absent, i) ? 0.0f : 1.0f;
      for (const std::size_t place : absent) std::ranges::fill(image_of(whole, place), std::uint8_t{0});
      const LossSums found = evaluated();
      EXPECT_NEAR(found.loss, expected.loss, 1e-6 * expected.loss);
      EXPECT_EQ(found.correct, expected.correct);
      EXPECT_EQ(found.weight, static_cast<float>(kPlaces - absent.size()));
      EXPECT_EQ(found.samples, static_cast<std::int32_t>(kPlaces - absent.size()));
    }
  }
}

// data.tail = "exact" fills a batch with copies of its samples, with weight 0. If all samples have equally
// many copies, batch norm gets the moments of the samples alone. PyTorch's running variance, however, is
// divided by the number of values minus one, which the copies raise.
TEST(AbsentSamples, EqualCopiesOfEverySampleKeepBatchNormMoments) {
  constexpr double kMomentum = 0.1;
  for (const NamedPrecision& type : kPrecisions) {
    for (const std::size_t count : {2, 3}) {
      SCOPED_TRACE(fmt::format("{}, {} samples", type.name, count));
      NetworkFixture whole = fixture_of(cnn_with_norm, type.precision);
      NetworkFixture others = fixture_of(cnn_with_norm, type.precision, count);
      Places copies;
      for (std::size_t i = 0; i < kPlaces; ++i) {
        copy_sample(others, i % count, whole, i);
        if (i >= count) copies.push_back(i);
      }
      weigh(whole, copies);
      const Trained found = train(whole), expected = train(others);
      expect_same_training(found, expected, type.epsilon);
      for (const auto& [name, wanted] : expected.statistics) {
        const std::vector<float>& moved = found.statistics.at(name);
        if (name.ends_with("mean")) {
          EXPECT_LT(distance(moved, wanted), std::max(10 * type.epsilon, 1e-5)) << name;
          continue;
        }
        const auto side = name.starts_with("bn1") ? 8.0 : 4.0;
        const auto unbiased = [&](std::size_t samples) {
          const double values = static_cast<double>(samples) * side * side;
          return values / (values - 1);
        };
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          const double variance = (wanted[i] - (1 - kMomentum)) / kMomentum / unbiased(count);
          EXPECT_NEAR((moved[i] - (1 - kMomentum)) / kMomentum / unbiased(kPlaces), variance,
                      std::max(10 * type.epsilon * variance, 1e-5))
              << name;
        }
      }
    }
  }
}

// Batch norm treats a left-out sample as a black image (data/README.md): its moments include it, and the
// gradients are the slopes of the loss over the other samples.
TEST(AbsentSamples, BatchNormCountsLeftOutSamplesInItsMoments) {
  for (const Places& absent : kAbsentPlaces) {
    SCOPED_TRACE(fmt::format("{} absent, first at {}", absent.size(), absent[0]));
    NetworkFixture fixture = fixture_of(cnn_with_norm, Precision::fp32);
    NetworkFixture all = fixture_of(cnn_with_norm, Precision::fp32);
    for (const std::size_t place : absent) {
      std::ranges::fill(image_of(fixture, place), std::uint8_t{0});
      std::ranges::fill(image_of(all, place), std::uint8_t{0});
    }
    weigh(fixture, absent);
    const Trained found = train(fixture);
    EXPECT_EQ(found.statistics, train(all).statistics);
    EXPECT_LT(slope_error(fixture, fixture.network().parameters()), 0.1);
  }
}

}  // namespace
}  // namespace lockstep
