// SPDX-License-Identifier: Apache-2.0
#include "kernels/update.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/kernels/kept_threads.h"
#include "tests/kernels/update_fixture.h"

namespace lockstep {
namespace {

TEST_F(UpdateTest, TableCutsSegmentsIntoChunksOfBoundedSize) {
  const UpdateTable table({},
                          Segments{{.begin = 16, .count = 5}, {.begin = 32, .count = 2 * kUpdateChunk + 1}});
  EXPECT_EQ(table.elements(), 5 + 2 * kUpdateChunk + 1);
  ASSERT_EQ(table.chunks().size(), 4u);
  std::int64_t elements = 0;
  for (const UpdateChunk& chunk : table.chunks()) {
    const UpdateSegment& segment = table.segments()[static_cast<std::size_t>(chunk.segment)];
    EXPECT_GE(chunk.begin, segment.begin);
    EXPECT_LE(chunk.begin + chunk.count, segment.begin + segment.count);
    EXPECT_LE(chunk.count, kUpdateChunk);
    elements += chunk.count;
  }
  EXPECT_EQ(elements, table.elements());
  EXPECT_EQ(table.segments()[0].first_chunk, 0);
  EXPECT_EQ(table.segments()[1].first_chunk, 1);
  EXPECT_TRUE(UpdateTable({}, {}).chunks().empty());
}

TEST_F(UpdateTest, TableRefusesSegmentsThatOverlapOrAreEmpty) {
  EXPECT_THROW(UpdateTable({}, Segments{{.begin = 0, .count = 5}, {.begin = 4, .count = 5}}), Error);
  EXPECT_THROW(UpdateTable({}, Segments{{.begin = 0, .count = 0}}), Error);
}

TEST_F(UpdateTest, SgdFollowsItsFormula) {
  constexpr double kDecay = 1e-2;
  for (const bool with_nesterov : {false, true}) {
    for (const std::int64_t count : kCounts) {
      Memory memory(count);
      Doubles value = widen(memory.value.values()), m(value.size());
      run(with_nesterov ? nesterov : sgd, {{.count = count, .weight_decay = float(kDecay)}}, memory);
      for (int step = 1; step <= kSteps; ++step) {
        const Values gradient = gradient_of(count, step);
        for (std::size_t i = 0; i < value.size(); ++i) {
          const double g = gradient[i] + kDecay * value[i];
          m[i] = 0.9 * m[i] + g;
          value[i] -= 0.1 * (with_nesterov ? g + 0.9 * m[i] : m[i]);
        }
      }
      for (std::size_t i = 0; i < value.size(); ++i) {
        ASSERT_NEAR(memory.value.floats()[i], value[i], 2e-6) << i << " of " << count;
        ASSERT_NEAR(memory.first.floats()[i], m[i], 2e-6) << i << " of " << count;
      }
    }
  }
}

// The codec has applied momentum. Weight decay, which no codec sees, has separate momentum.
TEST_F(UpdateTest, GradientsThatContainMomentumGetNoMore) {
  constexpr double kDecay = 1e-2;
  for (const bool with_nesterov : {false, true}) {
    Memory memory(1000);
    Doubles value = widen(memory.value.values()), m(value.size());
    run(with_nesterov ? nesterov : sgd,
        {{.count = 1000, .weight_decay = float(kDecay), .gradient_has_momentum = true}}, memory);
    for (int step = 1; step <= kSteps; ++step) {
      const Values gradient = gradient_of(1000, step);
      for (std::size_t i = 0; i < value.size(); ++i) {
        const double decay = kDecay * value[i];
        m[i] = 0.9 * m[i] + decay;
        value[i] -= 0.1 * (gradient[i] + (with_nesterov ? decay + 0.9 * m[i] : m[i]));
      }
    }
    for (std::size_t i = 0; i < value.size(); ++i) {
      ASSERT_NEAR(memory.value.floats()[i], value[i], 2e-6) << i;
      ASSERT_NEAR(memory.first.floats()[i], m[i], 2e-6) << i;
    }
  }
}

// The decay is that of the first steps, then the final one.
TEST_F(UpdateTest, AnAverageOfValuesFollowsItsFormula) {
  for (const std::int64_t count : kCounts) {
    const GuardedMemory value(random_values(count, "value")), average(random_values(count, "average"));
    Doubles expected = widen(average.values());
    for (const auto& [step, decay] : {std::pair{1, 2.0 / 11}, {2, 3.0 / 12}, {1000, 0.75}}) {
      const StepControl control{.step = step + 1};  // after that step
      backend_.average_values(stream_, {.control = &control,
                                        .decay = 0.75,
                                        .count = count,
                                        .value = value.floats(),
                                        .average = average.floats()});
      for (std::size_t i = 0; i < expected.size(); ++i)
        expected[i] = decay * expected[i] + (1 - decay) * double{value.floats()[i]};
    }
    for (std::size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(average.floats()[i], expected[i], 1e-6) << i << " of " << count;
    const Values before = average.values(), values = value.values();
    const StepControl skipped{.step = 5, .finite = 0};
    backend_.average_values(stream_, {.control = &skipped,
                                      .decay = 0.75,
                                      .count = count,
                                      .value = value.floats(),
                                      .average = average.floats()});
    EXPECT_EQ(average.values(), before);
    backend_.swap_values(stream_, {.count = count, .values = value.floats(), .others = average.floats()});
    EXPECT_EQ(value.values(), before);
    EXPECT_EQ(average.values(), values);
    EXPECT_TRUE(value.margin_intact() && average.margin_intact());
  }
}

TEST_F(UpdateTest, AdamWFollowsItsFormula) {
  constexpr double kDecay = 0.1;
  for (const std::int64_t count : kCounts) {
    Memory memory(count);
    Doubles value = widen(memory.value.values()), m(value.size()), v(value.size());
    run(adamw, {{.count = count, .weight_decay = float(kDecay)}}, memory);
    for (int step = 1; step <= kSteps; ++step) {
      const Values gradient = gradient_of(count, step);
      for (std::size_t i = 0; i < value.size(); ++i) {
        value[i] -= 0.01 * kDecay * value[i];
        m[i] = 0.9 * m[i] + 0.1 * gradient[i];
        v[i] = 0.999 * v[i] + 0.001 * gradient[i] * gradient[i];
        const double denominator = std::sqrt(v[i]) / std::sqrt(1 - std::pow(0.999, step)) + 1e-8;
        value[i] -= 0.01 / (1 - std::pow(0.9, step)) * m[i] / denominator;
      }
    }
    for (std::size_t i = 0; i < value.size(); ++i) {
      ASSERT_NEAR(memory.value.floats()[i], value[i], 2e-6) << i << " of " << count;
      ASSERT_NEAR(memory.first.floats()[i], m[i], 1e-6) << i << " of " << count;
      ASSERT_NEAR(memory.second.floats()[i], v[i], 1e-8) << i << " of " << count;
    }
  }
}

TEST_F(UpdateTest, TheFirstAdamWStepHasTheSizeOfTheLearningRate) {
  const UpdateTable table({}, Segments{{.count = 3}});
  const GuardedMemory value(Values{1, 1, 1}), gradient(Values{1e-4f, 10, -3}), m(Values{0, 0, 0}),
      v(Values{0, 0, 0});
  const StepControl control{.learning_rate = 0.25};
  backend_.update(
      stream_, {.table = table, .value = value.floats(), .gradient = gradient.floats(), .control = &control},
      AdamWUpdate{.first_moment = m.floats(), .second_moment = v.floats()});
  EXPECT_NEAR(value.floats()[0], 0.75, 1e-4);
  EXPECT_NEAR(value.floats()[1], 0.75, 1e-6);
  EXPECT_NEAR(value.floats()[2], 1.25, 1e-6);
}

TEST_F(UpdateTest, LarsFollowsItsFormula) {
  constexpr double kDecay = 0.01;
  for (const std::int64_t count : kCounts) {
    Memory memory(count);
    Doubles value = widen(memory.value.values()), m(value.size());
    run(lars, {{.count = count, .weight_decay = float(kDecay), .adaptive = true}}, memory);
    double ratio = 0;
    for (int step = 1; step <= kSteps; ++step) {
      const Values gradient = gradient_of(count, step);
      double value_norm = 0, gradient_norm = 0;
      for (std::size_t i = 0; i < value.size(); ++i) {
        value_norm += value[i] * value[i];
        gradient_norm += static_cast<double>(gradient[i]) * gradient[i];
      }
      value_norm = std::sqrt(value_norm);
      ratio = 0.02 * value_norm / (std::sqrt(gradient_norm) + kDecay * value_norm + 1e-8);
      for (std::size_t i = 0; i < value.size(); ++i) {
        m[i] = 0.9 * m[i] + ratio * (gradient[i] + kDecay * value[i]);
        value[i] -= 5.0 * m[i];
      }
    }
    EXPECT_NEAR(trust_ratios_.at(0), ratio, 1e-5 * ratio);
    for (std::size_t i = 0; i < value.size(); ++i) {
      ASSERT_NEAR(memory.value.floats()[i], value[i], 5e-6) << i << " of " << count;
      ASSERT_NEAR(memory.first.floats()[i], m[i], 1e-6) << i << " of " << count;
    }
  }
}

TEST_F(UpdateTest, LarsWithoutANormOrAdaptionIsSgd) {
  const UpdateTable table({}, Segments{{.begin = 0, .count = 2, .adaptive = true},
                                       {.begin = 2, .count = 2, .adaptive = true},
                                       {.begin = 4, .count = 2}});
  Memory memory(6);
  for (int i = 0; i < 6; ++i) memory.value.floats()[i] = i < 2 ? 0.0f : 3.0f;
  const GuardedMemory gradient(Values{1, 2, 0, 0, 4, 5});
  lars(table, memory, {.gradient = gradient.data()});
  EXPECT_EQ(trust_ratios_, (std::vector<float>{1, 1, 1}));
  EXPECT_EQ(memory.value.values(), (Values{-5, -10, 3, 3, 3 - 20, 3 - 25}));
}

TEST_F(UpdateTest, ElementsInNoSegmentAreUnchanged) {
  constexpr std::int64_t kCount = 3 * kUpdateChunk;
  const Segments segments = {{.begin = 5, .count = 20, .weight_decay = 0.1f, .adaptive = true},
                             {.begin = 1000, .count = kUpdateChunk + 7, .adaptive = true},
                             {.begin = kCount - 2, .count = 1}};
  for (const Step* step : {&sgd, &nesterov, &adamw, &lars}) {
    Memory memory(kCount);
    const Values before = memory.value.values();
    run(*step, segments, memory);
    for (std::int64_t i = 0; i < kCount; ++i) {
      bool inside = false;
      for (const UpdateSegment& segment : segments)
        inside = inside || (i >= segment.begin && i < segment.begin + segment.count);
      const auto at = static_cast<std::size_t>(i);
      ASSERT_EQ(memory.value.floats()[i] != before[at], inside) << i;
      ASSERT_EQ(memory.first.floats()[i] != 0, inside) << i;
    }
  }
}

TEST_F(UpdateTest, EachSegmentHasItsOwnDecay) {
  constexpr std::int64_t kCount = 40;
  const Segments segments = {{.begin = 0, .count = 17, .weight_decay = 0.5f},
                             {.begin = 17, .count = 10},
                             {.begin = 27, .count = 13, .weight_decay = 0.25f}};
  for (const Step* step : {&sgd, &nesterov, &adamw, &lars}) {
    Memory whole(kCount);
    run(*step, segments, whole);
    for (const UpdateSegment& segment : segments) {
      Memory alone(kCount);
      run(*step, {{.count = kCount, .weight_decay = segment.weight_decay}}, alone);
      for (std::int64_t i = segment.begin; i < segment.begin + segment.count; ++i)
        ASSERT_EQ(whole.value.floats()[i], alone.value.floats()[i]) << i;
    }
  }
}

TEST_F(UpdateTest, BitsDoNotDependOnSegmentsAndThreads) {
  const KeptThreads kept;
  constexpr std::int64_t kCount = 50001;
  const Segments one = {{.count = kCount, .weight_decay = 0.1f}};
  Segments many;
  for (std::int64_t begin = 0, count = 1; begin < kCount;
       begin += many.back().count, count = count * 3 % 1009)
    many.push_back({.begin = begin, .count = std::min(count, kCount - begin), .weight_decay = 0.1f});
  for (const Step* step : {&sgd, &nesterov, &adamw, &lars}) {
    Memory expected(kCount);
    run(*step, one, expected);
    for (const int threads : {1, 2, 3}) {
      backend_.set_threads(threads);
      Memory memory(kCount);
      run(*step, many, memory);
      EXPECT_TRUE(memory == expected) << threads;
    }
  }
}

TEST_F(UpdateTest, TrustRatiosDoNotDependOnThreads) {
  const KeptThreads kept;
  constexpr std::int64_t kCount = 100001;
  const Segments segments = {{.count = kCount, .weight_decay = 0.1f, .adaptive = true}};
  std::vector<Values> results;
  for (const int threads : {1, 2, 3}) {
    backend_.set_threads(threads);
    Memory memory(kCount);
    run(lars, segments, memory);
    results.push_back(memory.value.values());
  }
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

}  // namespace
}  // namespace lockstep
