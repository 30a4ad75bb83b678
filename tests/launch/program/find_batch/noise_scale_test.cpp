// SPDX-License-Identifier: Apache-2.0
#include "launch/program/find_batch/noise_scale.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "core/error.h"

namespace lockstep {
namespace {

// Samples' gradients with a normal distribution around a mean.
struct PlantedNoise {
  double mean = 0.1;
  double deviation = 1;
  std::int64_t elements = 200;

  double gradient_square() const { return mean * mean * static_cast<double>(elements); }
  double variance() const { return deviation * deviation * static_cast<double>(elements); }
};

NoiseScale measured(const PlantedNoise& planted, int micro_batches, int batch, int times) {
  std::mt19937 engine(1);
  std::normal_distribution<double> noise(planted.mean, planted.deviation / std::sqrt(batch));
  NoiseScale scale;
  for (int i = 0; i < times; ++i) {
    MicroBatchGradients sums(planted.elements);
    for (int micro = 0; micro < micro_batches; ++micro) {
      std::vector<float> gradient(static_cast<std::size_t>(planted.elements));
      for (float& value : gradient) value = static_cast<float>(noise(engine));
      sums.add(std::span(gradient).first(50));
      sums.add(std::span(gradient).subspan(50));
      sums.end_micro_batch();
    }
    scale.add({.small_square = sums.squares() / micro_batches,
               .large_square = sums.square_of_sum() / micro_batches / micro_batches,
               .small_batch = static_cast<double>(batch),
               .large_batch = static_cast<double>(batch * micro_batches)});
  }
  return scale;
}

TEST(NoiseScale, RecoversTheSimulatedNoiseWithAnyBatch) {
  const PlantedNoise planted;
  ASSERT_DOUBLE_EQ(planted.variance() / planted.gradient_square(), 100);
  for (const int batch : {4, 64}) {
    for (const int micro_batches : {2, 8}) {
      const NoiseScale scale = measured(planted, micro_batches, batch, 400);
      EXPECT_NEAR(scale.gradient_square() / planted.gradient_square(), 1, 0.15)
          << batch << " " << micro_batches;
      EXPECT_NEAR(scale.variance() / planted.variance(), 1, 0.1) << batch << " " << micro_batches;
      EXPECT_NEAR(scale.critical_batch(), 100, 20) << batch << " " << micro_batches;
      EXPECT_EQ(scale.samples(), 400);
    }
  }
}

TEST(NoiseScale, IsZeroOrInfiniteWithoutNoiseOrSignal) {
  EXPECT_EQ(NoiseScale().critical_batch(), 0);
  NoiseScale noise_alone;
  noise_alone.add({.small_square = 4, .large_square = 1, .small_batch = 1, .large_batch = 4});
  EXPECT_TRUE(std::isinf(noise_alone.critical_batch()));
  NoiseScale no_noise;
  no_noise.add({.small_square = 4, .large_square = 4, .small_batch = 1, .large_batch = 4});
  EXPECT_EQ(no_noise.critical_batch(), 0);
  EXPECT_THROW(no_noise.add({.small_batch = 4, .large_batch = 4}), Error);
}

TEST(MicroBatchGradients, RefusesAMicroBatchOfAnotherSize) {
  MicroBatchGradients sums(3);
  const std::vector<float> two = {1, 2};
  sums.add(two);
  EXPECT_THROW(sums.end_micro_batch(), Error);
  EXPECT_THROW(sums.add(two), Error);
}

}  // namespace
}  // namespace lockstep
