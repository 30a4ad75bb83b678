// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "tests/kernels/planned_memory.h"

namespace lockstep {
namespace {

// Around vector widths, and around the size from which on several threads work.
constexpr std::int64_t kCounts[] = {0, 1, 3, 15, 16, 17, 1000, (1 << 14) - 1, 1 << 14, (1 << 14) + 3, 100001};

class Elementwise : public testing::Test {
 protected:
  Backend& backend_ = backend_for(Device{});
  Stream stream_{Device{}, StreamUse::compute};
};

// The memory holds expected(i) at each i, and nothing behind the end was touched.
template <typename Expected>
void expect_elements(const GuardedMemory& memory, std::int64_t count, Expected expected) {
  for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(memory.floats()[i], expected(i)) << i << " of " << count;
  EXPECT_TRUE(memory.margin_intact()) << count;
}

// Every index of a small array; of a large one the first, the last and some between.
std::vector<std::size_t> places(std::size_t size) {
  std::vector<std::size_t> indices;
  const std::size_t stride = size <= 1000 ? 1 : size / 31;
  for (std::size_t i = 0; i < size; i += stride) indices.push_back(i);
  if (size > 0) indices.push_back(size - 1);
  return indices;
}

TEST_F(Elementwise, ReluKeepsWhatIsPositive) {
  for (const std::int64_t count : kCounts) {
    const Values x = random_values(count, "x");
    const auto expected = [&](std::int64_t i) { return x[i] > 0 ? x[i] : 0.0f; };
    const GuardedMemory input(x), output(x.size() * sizeof(float));
    backend_.activation_forward(stream_, Activation::relu, count, input.floats(), output.floats());
    expect_elements(output, count, expected);
    backend_.activation_forward(stream_, Activation::relu, count, input.floats(), input.floats());
    expect_elements(input, count, expected);
  }
}

TEST_F(Elementwise, ReluBackwardPassesWhereTheOutputIsPositive) {
  for (const std::int64_t count : kCounts) {
    const Values gradient = random_values(count, "gradient");
    Values y = random_values(count, "y");
    for (float& value : y) value = std::max(value, 0.0f);
    const auto expected = [&](std::int64_t i) { return y[i] > 0 ? gradient[i] : 0.0f; };
    const GuardedMemory output(y), given(gradient), result(y.size() * sizeof(float));
    backend_.activation_backward(stream_, Activation::relu, count, output.floats(), given.floats(),
                                 result.floats());
    expect_elements(result, count, expected);
    backend_.activation_backward(stream_, Activation::relu, count, output.floats(), given.floats(),
                                 given.floats());
    expect_elements(given, count, expected);
    backend_.activation_backward(stream_, Activation::relu, count, output.floats(),
                                 GuardedMemory(gradient).floats(), output.floats());
    expect_elements(output, count, expected);
  }
}

TEST_F(Elementwise, AddSumsAndMayAliasEitherSide) {
  for (const std::int64_t count : kCounts) {
    const Values left = random_values(count, "a"), right = random_values(count, "b");
    const auto expected = [&](std::int64_t i) { return left[i] + right[i]; };
    const GuardedMemory a(left), b(right), sum(left.size() * sizeof(float));
    backend_.add(stream_, count, a.floats(), b.floats(), sum.floats());
    expect_elements(sum, count, expected);
    const GuardedMemory into_a(left), into_b(right);
    backend_.add(stream_, count, into_a.floats(), b.floats(), into_a.floats());
    backend_.add(stream_, count, a.floats(), into_b.floats(), into_b.floats());
    expect_elements(into_a, count, expected);
    expect_elements(into_b, count, expected);
  }
}

TEST_F(Elementwise, ScaleMultiplies) {
  for (const std::int64_t count : kCounts) {
    const Values x = random_values(count, "x");
    const GuardedMemory values(x);
    backend_.scale(stream_, count, 0.37f, values.floats());
    expect_elements(values, count, [&](std::int64_t i) { return x[i] * 0.37f; });
  }
}

TEST_F(Elementwise, FindsOneBadValueAnywhere) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto is_finite = [&](const Values& values) {
    std::int32_t finite = -1;
    backend_.all_finite(stream_, static_cast<std::int64_t>(values.size()), values.data(), &finite);
    return finite;
  };
  for (const std::int64_t count : kCounts) {
    Values values = random_values(count, "values");
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

TEST_F(Elementwise, TheSmallestAndLargestNumbersAreFinite) {
  using Limits = std::numeric_limits<float>;
  const Values values = {0.0f, -0.0f, Limits::denorm_min(), Limits::min(), Limits::max(), Limits::lowest()};
  std::int32_t finite = -1;
  backend_.all_finite(stream_, static_cast<std::int64_t>(values.size()), values.data(), &finite);
  EXPECT_EQ(finite, 1);
}

}  // namespace
}  // namespace lockstep
