// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "tests/kernels/kept_threads.h"
#include "tests/kernels/planned_memory.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

// Sizes around vector widths, and around the size from which several threads work.
constexpr std::int64_t kElementCounts[] = {
    0, 1, 3, 15, 16, 17, 1000, (1 << 14) - 1, 1 << 14, (1 << 14) + 3, 100001 / kOneOf};

class Elementwise : public testing::TestWithParam<DType> {
 protected:
  // Random values that the type represents.
  Values random(std::int64_t count, const char* purpose) const {
    return rounded(random_values(count, purpose), type_);
  }
  GuardedMemory memory(const Values& values) const { return GuardedMemory(values, type_); }
  GuardedMemory memory(std::int64_t count) const {
    return GuardedMemory(static_cast<std::size_t>(count) * size_of(type_), type_);
  }
  // Expects memory to hold expected(i), computed in fp32 and rounded, at each i, and its margin to be
  // unchanged.
  template <typename Expected>
  void expect_elements(const GuardedMemory& memory, std::int64_t count, Expected expected) const {
    Values values(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = expected(i);
    EXPECT_EQ(memory.values(), rounded(values, type_)) << count;
    EXPECT_TRUE(memory.margin_intact()) << count;
  }

  const DType type_ = GetParam();
  Backend& backend_ = backend_for(Device{});
  Stream stream_{Device{}, StreamUse::compute};
};

INSTANTIATE_TEST_SUITE_P(Types, Elementwise, testing::ValuesIn(kTypes),
                         [](const auto& type) { return std::string(name_of(type.param)); });

// Every index of a small array; the first, the last and some others of a large one.
std::vector<std::size_t> places(std::size_t size) {
  std::vector<std::size_t> indices;
  const std::size_t stride = size <= 1000 ? 1 : size / 31;
  for (std::size_t i = 0; i < size; i += stride) indices.push_back(i);
  if (size > 0) indices.push_back(size - 1);
  return indices;
}

TEST_P(Elementwise, ReluKeepsPositiveValues) {
  for (const std::int64_t count : kElementCounts) {
    const Values x = random(count, "x");
    const auto expected = [&](std::int64_t i) { return x[i] > 0 ? x[i] : 0.0f; };
    const GuardedMemory input = memory(x), output = memory(count);
    ActivationForward arguments{
        .activation = Activation::relu, .type = type_, .count = count, .x = input.data(), .y = output.data()};
    backend_.activation_forward(stream_, arguments);
    expect_elements(output, count, expected);
    arguments.y = input.data();
    backend_.activation_forward(stream_, arguments);
    expect_elements(input, count, expected);
  }
}

TEST_P(Elementwise, Relu6ClampsAtSix) {
  for (const std::int64_t count : kElementCounts) {
    Values x = random(count, "x");
    for (float& value : x) value *= 8;
    const GuardedMemory input = memory(x), output = memory(count);
    backend_.activation_forward(stream_, {.activation = Activation::relu6,
                                          .type = type_,
                                          .count = count,
                                          .x = input.data(),
                                          .y = output.data()});
    expect_elements(output, count, [&](std::int64_t i) { return std::clamp(x[i], 0.0f, 6.0f); });
  }
}

// The definition in double precision.
double smooth_activation(Activation activation, double x) {
  if (activation == Activation::sigmoid) return 1 / (1 + std::exp(-x));
  if (activation == Activation::tanh) return std::tanh(x);
  return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
}

TEST_P(Elementwise, SmoothActivationsAndTheirGradientsMatchTheDefinition) {
  for (const Activation activation : {Activation::sigmoid, Activation::tanh, Activation::gelu}) {
    for (const std::int64_t count : kElementCounts) {
      SCOPED_TRACE(fmt::format("activation {}, {} elements", static_cast<int>(activation), count));
      Values x = random(count, "x");
      for (float& value : x) value *= 8;
      const Values y_gradient = random(count, "gradient");
      const GuardedMemory input = memory(x), output = memory(count), given = memory(y_gradient),
                          result = memory(count);
      backend_.activation_forward(stream_, {activation, type_, count, input.data(), output.data()});
      backend_.activation_backward(
          stream_, {activation, type_, count, reads_input(activation) ? input.data() : output.data(),
                    given.data(), result.data()});
      EXPECT_TRUE(output.margin_intact() && result.margin_intact());
      const Values y = output.values(), gradient = result.values();
      const double precision = type_ == DType::f32 ? 1e-6 : type_ == DType::f16 ? 1e-3 : 8e-3;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double at = static_cast<double>(x[i]), h = 1e-5;
        ASSERT_NEAR(y[i], smooth_activation(activation, at), precision * std::max(1.0, std::abs(at)));
        const double slope =
            (smooth_activation(activation, at + h) - smooth_activation(activation, at - h)) / (2 * h);
        // The result, from which backward computes the slope, was rounded to the type.
        ASSERT_NEAR(gradient[i], slope * static_cast<double>(y_gradient[i]), 2 * precision) << at;
      }
    }
  }
}

TEST_P(Elementwise, ReluBackwardPassesGradientsOfPositiveOutputs) {
  for (const std::int64_t count : kElementCounts) {
    const Values gradient = random(count, "gradient");
    Values y = random(count, "y");
    for (float& value : y) value = std::max(value, 0.0f);
    const auto expected = [&](std::int64_t i) { return y[i] > 0 ? gradient[i] : 0.0f; };
    const GuardedMemory output = memory(y), given = memory(gradient), result = memory(count);
    const auto backward = [&](const GuardedMemory& from, const GuardedMemory& to) {
      backend_.activation_backward(stream_, {.activation = Activation::relu,
                                             .type = type_,
                                             .count = count,
                                             .y = output.data(),
                                             .y_gradient = from.data(),
                                             .x_gradient = to.data()});
      expect_elements(to, count, expected);
    };
    backward(given, result);
    backward(given, given);
    backward(memory(gradient), output);
  }
}

TEST_P(Elementwise, AddSumsAndMayAliasEitherSide) {
  for (const std::int64_t count : kElementCounts) {
    const Values left = random(count, "a"), right = random(count, "b");
    const GuardedMemory a = memory(left), b = memory(right), sum = memory(count);
    const auto add = [&](const GuardedMemory& first, const GuardedMemory& second, const GuardedMemory& to) {
      backend_.add(stream_,
                   {.type = type_, .count = count, .a = first.data(), .b = second.data(), .sum = to.data()});
      expect_elements(to, count, [&](std::int64_t i) { return left[i] + right[i]; });
    };
    add(a, b, sum);
    const GuardedMemory into_a = memory(left), into_b = memory(right);
    add(into_a, b, into_a);
    add(a, into_b, into_b);
  }
}

TEST_P(Elementwise, ScaleMultiplies) {
  for (const std::int64_t count : kElementCounts) {
    const Values x = random(count, "x");
    const GuardedMemory values = memory(x);
    backend_.scale(stream_, {.type = type_, .count = count, .factor = 0.37f, .values = values.data()});
    expect_elements(values, count, [&](std::int64_t i) { return x[i] * 0.37f; });
  }
}

TEST_P(Elementwise, CastRoundsToNearest) {
  for (const std::int64_t count : kElementCounts) {
    const Values x = random_values(count, "x");
    const GuardedMemory wide(x), narrow = memory(count), back(x.size() * sizeof(float));
    backend_.cast(stream_, {.count = count, .to_type = type_, .from = wide.data(), .to = narrow.data()});
    expect_elements(narrow, count, [&](std::int64_t i) { return x[i]; });
    backend_.cast(stream_, {.count = count,
                            .from_type = type_,
                            .to_type = DType::f32,
                            .from = narrow.data(),
                            .to = back.data()});
    EXPECT_EQ(back.values(), rounded(x, type_));
    EXPECT_TRUE(back.margin_intact() && narrow.margin_intact());
  }
}

TEST_P(Elementwise, LargestMagnitudeIgnoresTheSign) {
  const auto largest_of = [&](const Values& values) {
    const GuardedMemory elements = memory(values);
    std::int32_t bits = -1;
    backend_.largest_magnitude(stream_, {.type = type_,
                                         .count = static_cast<std::int64_t>(values.size()),
                                         .values = elements.data(),
                                         .largest = &bits});
    return std::bit_cast<float>(bits);
  };
  for (const std::int64_t count : kElementCounts) {
    Values values = random(count, "values");
    float largest = 0;
    for (const float value : values) largest = std::max(largest, std::abs(value));
    EXPECT_EQ(largest_of(values), largest) << count;
    for (const std::size_t i : places(values.size())) {
      const float before = values[i];
      values[i] = -1.5f;
      EXPECT_EQ(largest_of(values), 1.5f) << i << " of " << count;
      values[i] = std::nanf("");
      EXPECT_TRUE(std::isnan(largest_of(values))) << i << " of " << count;
      values[i] = before;
    }
  }
}

// The scaled sum of `terms` values of the largest magnitude is at most 2^15, and the scale is the largest
// such power of two.
TEST(HalfScale, KeepsSumsWithinFp16) {
  Stream stream(Device{}, StreamUse::compute);
  const auto scale_of = [&](float largest, int terms) {
    const auto bits = std::bit_cast<std::int32_t>(largest);
    float scale = 0, inverse = 0;
    backend_for(Device{}).half_scale(
        stream, {.largest = &bits, .terms = terms, .scale = &scale, .inverse = &inverse});
    EXPECT_EQ(scale * inverse, 1.0f);
    return scale;
  };
  for (const int terms : {1, 2, 3, 64, 1000, 1024}) {
    const float limit = 0x1p15f / static_cast<float>(std::bit_ceil(static_cast<unsigned>(terms)));
    for (int power = -100; power <= 100; ++power) {
      for (const float mantissa : {1.0f, 1.75f, 0x1.fffffep0f}) {
        const float largest = std::ldexp(mantissa, power);
        EXPECT_LT(largest * scale_of(largest, terms), limit) << largest;
        EXPECT_GE(2 * largest * scale_of(largest, terms), limit) << largest;
      }
    }
    for (const float special : {0.0f, HUGE_VALF, std::nanf("")}) EXPECT_EQ(scale_of(special, terms), 1.0f);
  }
  for (const float extreme : {0x1p-149f, 0x1p-126f, 0x1.fffffep127f})
    EXPECT_TRUE(std::isnormal(scale_of(extreme, 1024))) << extreme;
}

TEST_P(Elementwise, ACastMayMultiply) {
  const float factor = 0x1p5f;
  for (const std::int64_t count : kElementCounts) {
    const Values x = random_values(count, "x");
    const GuardedMemory wide(x), narrow = memory(count);
    backend_.cast(
        stream_,
        {.count = count, .to_type = type_, .from = wide.data(), .to = narrow.data(), .factor = &factor});
    expect_elements(narrow, count, [&](std::int64_t i) { return factor * x[i]; });
  }
}

// The product is rounded before it is added, at every instruction set.
TEST_P(Elementwise, ACastMayAddToTheDestination) {
  const float factor = 0.37f;
  for (const std::int64_t count : kElementCounts) {
    const Values sums = random_values(count, "sums"), x = random(count, "x"),
                 narrow_sums = random(count, "n");
    for (const float* times : {static_cast<const float*>(nullptr), &factor}) {
      // In fp64 the product is exact, so that the compiler cannot fuse it with the sum.
      const auto product = [by = times == nullptr ? 1.0 : double{*times}](float value) {
        return static_cast<float>(by * double{value});
      };
      const GuardedMemory wide(sums), narrow = memory(x), narrow_sum = memory(narrow_sums);
      backend_.cast(stream_, {.count = count,
                              .from_type = type_,
                              .to_type = DType::f32,
                              .from = narrow.data(),
                              .to = wide.data(),
                              .factor = times,
                              .write = Write::accumulate});
      Values added(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) added[i] = sums[i] + product(x[i]);
      EXPECT_EQ(wide.values(), added) << count;
      backend_.cast(stream_, {.count = count,
                              .to_type = type_,
                              .from = wide.data(),
                              .to = narrow_sum.data(),
                              .factor = times,
                              .write = Write::accumulate});
      expect_elements(narrow_sum, count, [&](std::int64_t i) { return narrow_sums[i] + product(added[i]); });
      EXPECT_TRUE(wide.margin_intact() && narrow.margin_intact());
    }
  }
}

TEST_P(Elementwise, FindsOneBadValueAnywhere) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto is_finite = [&](const Values& values) {
    const GuardedMemory elements = memory(values);
    std::int32_t finite = -1;
    backend_.all_finite(stream_, {.type = type_,
                                  .count = static_cast<std::int64_t>(values.size()),
                                  .values = elements.data(),
                                  .finite = &finite});
    return finite;
  };
  for (const std::int64_t count : kElementCounts) {
    Values values = random(count, "values");
    EXPECT_EQ(is_finite(values), 1) << count;
    for (const std::size_t i : places(values.size())) {
      const float good = values[i];
      for (const float bad : {kInfinity, -kInfinity, std::nanf(""), -std::nanf("")}) {
        values[i] = bad;
        ASSERT_EQ(is_finite(values), 0) << bad << " at " << i << " of " << count;
      }
      values[i] = good;
    }
    EXPECT_EQ(is_finite(values), 1) << count;
  }
}

TEST_P(Elementwise, AllFiniteCombinesSeveralPieces) {
  const GuardedMemory good = memory(Values{1, 2}), bad = memory(Values{1, std::nanf("")});
  std::int32_t finite = 1;
  const auto judge = [&](const GuardedMemory& piece) {
    backend_.all_finite(
        stream_,
        {.type = type_, .count = 2, .values = piece.data(), .finite = &finite, .write = Write::accumulate});
    return finite;
  };
  EXPECT_EQ(judge(good), 1);
  EXPECT_EQ(judge(bad), 0);
  EXPECT_EQ(judge(good), 0);
}

TEST_P(Elementwise, SumOfSquaresDoesNotDependOnThreads) {
  const KeptThreads kept;
  std::vector<double> sums(kSquareSums, -1);
  const auto add = [&](const Values& values, Write write) {
    const GuardedMemory elements = memory(values);
    backend_.sum_squares(stream_, {.type = type_,
                                   .count = static_cast<std::int64_t>(values.size()),
                                   .values = elements.data(),
                                   .sums = sums.data(),
                                   .write = write});
    return std::accumulate(sums.begin(), sums.end(), 0.0);
  };
  const auto exact = [&](const Values& values) {
    double sum = 0;
    for (const float value : rounded(values, type_)) sum += double{value} * double{value};
    return sum;
  };
  for (const std::int64_t count : kElementCounts) {
    const Values values = random(count, "values"), more = random(7, "more");
    const double expected = exact(values);
    EXPECT_NEAR(add(values, Write::overwrite), expected, 1e-12 * expected) << count;
    EXPECT_NEAR(add(more, Write::accumulate), expected + exact(more), 1e-12 * expected) << count;
    add(values, Write::overwrite);
    const std::vector<double> several = sums;
    backend_.set_threads(1);
    add(values, Write::overwrite);
    backend_.set_threads(2);
    EXPECT_EQ(sums, several) << count;
  }
  EXPECT_EQ(add({}, Write::overwrite), 0);
}

TEST_P(Elementwise, TheSmallestAndLargestNumbersAreFinite) {
  const bool f16 = type_ == DType::f16;
  const float largest = f16 ? 65504.0f : type_ == DType::bf16 ? 0x1.fep127f : 0x1.fffffep127f;
  const float smallest = f16 ? 0x1p-24f : type_ == DType::bf16 ? 0x1p-133f : 0x1p-149f;
  const Values values = {0.0f, -0.0f, smallest, -smallest, largest, -largest};
  EXPECT_EQ(rounded(values, type_), values);
  const GuardedMemory elements = memory(values);
  std::int32_t finite = -1;
  backend_.all_finite(stream_, {.type = type_, .count = 6, .values = elements.data(), .finite = &finite});
  EXPECT_EQ(finite, 1);
}

// Arrays are cast with the same bits as single values, whose casts tests/core/tensor/tensor_test.cpp compares
// with the definitions of the formats.
class HalfCast : public testing::TestWithParam<DType> {
 protected:
  float widen_one(std::uint32_t bits) const {
    const auto half = static_cast<std::uint16_t>(bits);
    return GetParam() == DType::f16 ? static_cast<float>(std::bit_cast<Half>(half))
                                    : static_cast<float>(std::bit_cast<BFloat16>(half));
  }
  std::uint16_t narrow_one(float value) const {
    return GetParam() == DType::f16 ? Half(value).bits : BFloat16(value).bits;
  }

  std::vector<float> widen_bits(const std::vector<std::uint16_t>& bits) {
    std::vector<float> wide(bits.size());
    backend_for(Device{}).cast(stream_, {.count = static_cast<std::int64_t>(bits.size()),
                                         .from_type = GetParam(),
                                         .to_type = DType::f32,
                                         .from = bits.data(),
                                         .to = wide.data()});
    return wide;
  }
  std::vector<std::uint16_t> narrow(const std::vector<float>& values) {
    std::vector<std::uint16_t> bits(values.size());
    backend_for(Device{}).cast(stream_, {.count = static_cast<std::int64_t>(values.size()),
                                         .to_type = GetParam(),
                                         .from = values.data(),
                                         .to = bits.data()});
    return bits;
  }

  Stream stream_{Device{}, StreamUse::compute};
};

INSTANTIATE_TEST_SUITE_P(Types, HalfCast, testing::Values(DType::f16, DType::bf16),
                         [](const auto& type) { return std::string(name_of(type.param)); });

TEST_P(HalfCast, WidensEveryValueLikeASingleOne) {
  std::vector<std::uint16_t> bits(1 << 16);
  std::iota(bits.begin(), bits.end(), std::uint16_t{0});
  const std::vector<float> wide = widen_bits(bits);
  for (std::size_t i = 0; i < bits.size(); ++i)
    ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::bit_cast<std::uint32_t>(widen_one(bits[i]))) << i;
  const std::vector<std::uint16_t> back = narrow(wide);
  for (std::size_t i = 0; i < bits.size(); ++i) ASSERT_EQ(back[i], narrow_one(wide[i])) << i;
}

TEST_P(HalfCast, RoundsLikeASingleValue) {
  std::vector<float> values;
  for (std::uint64_t word = 0; word < (1ull << 32); word += 65521)
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(word)));
  for (const std::uint32_t nan : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0x7f80ffffu, 0xff800001u})
    values.insert(values.end(), 16, std::bit_cast<float>(nan));
  // Halfway between two neighbours, and next to that. Beyond the largest number as if there were a next one.
  const std::uint32_t infinity = GetParam() == DType::f16 ? 0x7c00 : 0x7f80;
  for (std::uint32_t low = 0; low < infinity; ++low) {
    const double here = widen_one(low);
    const double next = low + 1 < infinity ? widen_one(low + 1) : 2 * here - widen_one(low - 1);
    const auto middle = static_cast<float>((here + next) / 2);
    for (const float sign : {1.0f, -1.0f}) {
      values.insert(values.end(), {sign * middle, sign * std::nextafter(middle, 0.0f),
                                   sign * std::nextafter(middle, HUGE_VALF)});
    }
  }
  const std::vector<std::uint16_t> bits = narrow(values);
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(bits[i], narrow_one(values[i])) << values[i];
}

}  // namespace
}  // namespace lockstep
