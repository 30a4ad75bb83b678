// SPDX-License-Identifier: Apache-2.0
#include "kernels/dropout.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/kernels/kept_threads.h"
#include "tests/kernels/planned_memory.h"

namespace lockstep {
namespace {

struct DropoutCase {
  std::vector<SampleId> samples;
  std::int64_t features = 0;
  float probability = 0.5f;
  PhiloxKey key = key_for(1, "test");
  DType type = DType::f32;
};

Values run(const DropoutCase& test, const Values& x) {
  Stream stream(Device{}, StreamUse::compute);
  const GuardedMemory input(x, test.type);
  const GuardedMemory output(x.size() * size_of(test.type), test.type);
  DropoutArguments arguments{.batch = static_cast<std::int64_t>(test.samples.size()),
                             .features = test.features,
                             .samples = test.samples.data(),
                             .key = test.key,
                             .probability = test.probability,
                             .type = test.type,
                             .x = input.data(),
                             .y = output.data()};
  backend_for(Device{}).dropout(stream, arguments);
  EXPECT_TRUE(output.margin_intact());
  arguments.y = input.data();
  backend_for(Device{}).dropout(stream, arguments);
  EXPECT_EQ(input.values(), output.values()) << "in place";
  return output.values();
}

Values ones(const DropoutCase& test) {
  return Values(test.samples.size() * static_cast<std::size_t>(test.features), 1.0f);
}

// The mask of the sample at this place of the batch.
Values mask_of(const DropoutCase& test, std::size_t place) {
  const Values all = run(test, ones(test));
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(place) * test.features;
  return {first, first + test.features};
}

TEST(Dropout, KeepsTheExpectedShareAndScalesByItsInverse) {
  for (const float probability : {0.1f, 0.2f, 0.5f, 0.9f}) {
    DropoutCase test{.features = 1001, .probability = probability};
    for (std::int32_t i = 0; i < 200; ++i) test.samples.push_back({.epoch = 3, .index = i});
    const Values x = random_values(200 * 1001, "x");
    const Values y = run(test, x);
    double dropped = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (y[i] == 0) {
        ++dropped;
      } else {
        ASSERT_FLOAT_EQ(y[i], x[i] / (1 - probability));
      }
    }
    const double count = static_cast<double>(x.size());
    const double deviation = std::sqrt(probability * (1 - probability) / count);
    EXPECT_NEAR(dropped / count, probability, 5 * deviation);
  }
}

TEST(Dropout, NeighboursAreIndependent) {
  DropoutCase test{.features = 64};
  for (std::int32_t i = 0; i < 4000; ++i) test.samples.push_back({.epoch = 0, .index = i});
  const Values y = run(test, ones(test));
  // Correlations with the next features, the next block and the next sample.
  for (const std::size_t distance : {1, 2, 3, 4, 8, 64}) {
    double sum = 0;
    for (std::size_t i = 0; i + distance < y.size(); ++i) sum += (y[i] - 1.0) * (y[i + distance] - 1.0);
    EXPECT_LT(std::abs(sum / std::sqrt(static_cast<double>(y.size()))), 5) << distance;
  }
}

TEST(Dropout, TheMaskOfASampleDoesNotDependOnItsPlace) {
  const DropoutCase first{.samples = {{1, 7}, {1, 8}, {1, 9}}, .features = 13};
  const DropoutCase second{.samples = {{1, 9}, {0, 0}, {2, 2}, {1, 7}}, .features = 13};
  EXPECT_EQ(mask_of(first, 0), mask_of(second, 3));
  EXPECT_EQ(mask_of(first, 2), mask_of(second, 0));
}

TEST(Dropout, SampleEpochPurposeAndSeedEachChangeTheMask) {
  const DropoutCase test{.samples = {{1, 7}}, .features = 100};
  const Values mask = mask_of(test, 0);
  DropoutCase other = test;
  other.samples = {{1, 8}};
  EXPECT_NE(mask_of(other, 0), mask);
  other.samples = {{2, 7}};
  EXPECT_NE(mask_of(other, 0), mask);
  other = test;
  other.key = key_for(1, "another test");
  EXPECT_NE(mask_of(other, 0), mask);
  other.key = key_for(2, "test");
  EXPECT_NE(mask_of(other, 0), mask);
}

TEST(Dropout, SixteenBitInputHasTheSameMaskAndIsRoundedOnce) {
  for (const DType type : {DType::f16, DType::bf16}) {
    for (const std::int64_t features : {1, 7, 64, 999}) {
      DropoutCase test{.samples = {{1, 7}, {0, 8}, {1, 9}}, .features = features, .probability = 0.3f};
      const Values x = rounded(random_values(3 * features, "x"), type);
      const Values expected = rounded(run(test, x), type);
      test.type = type;
      EXPECT_EQ(run(test, x), expected) << name_of(type);
    }
  }
}

TEST(Dropout, DoesNotDependOnThreads) {
  DropoutCase test{.features = 999};
  for (std::int32_t i = 0; i < 100; ++i) test.samples.push_back({.epoch = 0, .index = i});
  const Values x = random_values(100 * 999, "x");
  Backend& backend = backend_for(Device{});
  const KeptThreads kept;
  backend.set_threads(1);
  const Values expected = run(test, x);
  for (const int threads : {2, 3}) {
    backend.set_threads(threads);
    EXPECT_EQ(run(test, x), expected);
  }
}

TEST(Dropout, ZeroDropsNothingAndOneIsRefused) {
  DropoutCase test{.samples = {{0, 0}}, .features = 50, .probability = 0};
  const Values x = random_values(50, "x");
  EXPECT_EQ(run(test, x), x);
  test.probability = 1;
  EXPECT_THROW(run(test, x), Error);
}

}  // namespace
}  // namespace lockstep
