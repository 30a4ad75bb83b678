// SPDX-License-Identifier: Apache-2.0
#include "kernels/sparse.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "tests/kernels/planned_memory.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

constexpr std::int64_t kSparseCounts[] = {1, 15, 64, 1000, 4099, 70'000, 1'000'000 / kOneOf};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::size_t to_size(std::int64_t i) { return static_cast<std::size_t>(i); }

// Many small numbers and few large ones, like gradients.
Values peaked_values(std::int64_t count, std::string_view purpose) {
  Values values = random_values(count, purpose);
  for (float& value : values) value *= value * value * value * value;
  return values;
}

float rounded(float value) { return static_cast<float>(BFloat16(value)); }

struct Sent {
  std::vector<std::int64_t> indices;
  Values values;
  Values residual;
  Values velocity;

  std::int64_t count() const { return std::ssize(indices); }
};

// Decodes a message as kernels/sparse.h describes it.
void read_message(const std::uint32_t* words, const SparseMessage& shape, Sent& sent) {
  const std::uint32_t* numbers = words + shape.heads();
  for (std::int64_t page = 0; page < shape.pages(); ++page) {
    for (std::int64_t i = words[page]; i < words[page + 1]; ++i) {
      sent.indices.push_back(page * 65536 + (numbers[i] & 0xffffu));
      sent.values.push_back(std::bit_cast<float>(numbers[i] & 0xffff0000u));
    }
  }
  EXPECT_EQ(words[0], 0u);
  for (std::int64_t i = words[shape.pages()]; i < shape.capacity; ++i) EXPECT_EQ(numbers[i], 0u);
}

struct Case {
  Values gradient;
  Values residual = {};
  Values velocity = {};
  float momentum = 0;
  bool nesterov = false;
  float kept_velocity = 0;
  float loss_scale = 1;
  float learning_rate = 1;
  std::int64_t kept = 1;
  std::int64_t capacity = 0;  // 0: the number of kept elements
};

Sent select(const Case& c) {
  Stream stream(Device{}, StreamUse::compute);
  const auto count = static_cast<std::int64_t>(c.gradient.size());
  const std::int64_t capacity = c.capacity > 0 ? c.capacity : c.kept;
  const GuardedMemory gradient(c.gradient), residual(c.residual), velocity(c.velocity);
  const SparseMessage shape{.count = count, .capacity = capacity};
  const GuardedMemory message(to_size(shape.words()) * sizeof(std::uint32_t));
  const GuardedMemory next_residual(c.gradient.size() * sizeof(float)),
      next_velocity(c.gradient.size() * sizeof(float)), scratch(sparse_scratch_bytes(count));
  std::uint32_t threshold = 0;
  const SparseNumbers numbers{.count = count,
                              .gradient = gradient.floats(),
                              .loss_scale = &c.loss_scale,
                              .learning_rate = &c.learning_rate,
                              .residual = c.residual.empty() ? nullptr : residual.floats(),
                              .velocity = c.velocity.empty() ? nullptr : velocity.floats(),
                              .momentum = c.momentum,
                              .nesterov = c.nesterov};
  cpu_backend().sparse_threshold(
      stream, {.numbers = numbers, .kept = c.kept, .threshold = &threshold, .scratch = scratch.data()});
  auto* words = static_cast<std::uint32_t*>(message.data());
  cpu_backend().sparse_select(stream, {.numbers = numbers,
                                       .capacity = capacity,
                                       .threshold = &threshold,
                                       .message = words,
                                       .next_residual = next_residual.floats(),
                                       .next_velocity = c.velocity.empty() ? nullptr : next_velocity.floats(),
                                       .kept_velocity = c.kept_velocity,
                                       .scratch = scratch.data()});
  EXPECT_EQ(std::memcmp(gradient.data(), c.gradient.data(), c.gradient.size() * sizeof(float)), 0);
  EXPECT_TRUE(message.margin_intact() && next_residual.margin_intact() && next_velocity.margin_intact() &&
              scratch.margin_intact());
  Sent sent{.residual = next_residual.values(), .velocity = next_velocity.values()};
  read_message(words, shape, sent);
  return sent;
}

TEST(Sparse, SentPlusResidualEqualsTheInput) {
  for (const std::int64_t count : kSparseCounts) {
    for (const double density : {0.001, 0.01, 0.25, 1.0}) {
      SCOPED_TRACE(fmt::format("{} of {}", density, count));
      const auto kept = std::max<std::int64_t>(1, std::llround(density * static_cast<double>(count)));
      const Case c{.gradient = peaked_values(count, "gradient"),
                   .residual = peaked_values(count, "residual"),
                   .loss_scale = 4,
                   .learning_rate = 0.25f,
                   .kept = kept};
      const Sent sent = select(c);
      Values numbers(c.gradient.size());
      for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = c.gradient[i] / 4 + c.residual[i] * 4;
      Values together = sent.residual;
      for (float& left : together) left *= 4;
      std::int64_t last = -1;
      for (std::int64_t i = 0, count_sent = sent.count(); i < count_sent; ++i) {
        const std::int64_t index = sent.indices[to_size(i)];
        ASSERT_GT(index, last) << "indices must increase";
        last = index;
        ASSERT_EQ(sent.values[to_size(i)], rounded(numbers[to_size(index)]));
        together[to_size(index)] += sent.values[to_size(i)];
      }
      EXPECT_EQ(together, numbers);
      // About as many as the capacity, and almost no larger one stays unsent.
      EXPECT_GE(sent.count(), kept - kept / 4 - 2);
      Values sizes = numbers;
      for (float& size : sizes) size = std::abs(size);
      std::ranges::sort(sizes, std::greater<>());
      double wanted = 0, got = 0;
      for (std::int64_t i = 0; i < kept; ++i) wanted += std::pow(static_cast<double>(sizes[to_size(i)]), 2);
      for (const float value : sent.values) got += std::pow(static_cast<double>(value), 2);
      EXPECT_GE(got, 0.8 * wanted);
    }
  }
}

TEST(Sparse, SendsTheFirstInMemoryOfEqualValues) {
  const Sent sent = select({.gradient = Values(5000, -0.25f), .kept = 50});
  ASSERT_EQ(sent.count(), 50);
  for (std::int64_t i = 0; i < 50; ++i) {
    ASSERT_EQ(sent.indices[to_size(i)], i);
    ASSERT_EQ(sent.values[to_size(i)], -0.25f);
  }
  EXPECT_EQ(std::ranges::count(sent.residual, -0.25f), 4950);
}

TEST(Sparse, ZerosAreNotSent) {
  Values gradient(3000, 0.0f);
  EXPECT_EQ(select({.gradient = gradient, .kept = 30}).count(), 0);
  gradient[2999] = 1e-40f;  // subnormal
  EXPECT_EQ(select({.gradient = gradient, .kept = 30}).indices, std::vector<std::int64_t>{2999});
}

// Algorithm 1 of the paper: sent elements clear their velocity and residual, except for the rounding error
// and the kept share of the velocity.
TEST(Sparse, MomentumFollowsTheAlgorithmOfThePaper) {
  constexpr std::int64_t kCount = 3000;
  for (const auto& [nesterov, kept_velocity] : {std::pair{false, 0.0f}, {true, 0.0f}, {true, 0.25f}}) {
    const Case c{.gradient = peaked_values(kCount, "gradient"),
                 .residual = peaked_values(kCount, "residual"),
                 .velocity = peaked_values(kCount, "velocity"),
                 .momentum = 0.5f,
                 .nesterov = nesterov,
                 .kept_velocity = kept_velocity,
                 .learning_rate = 0.5f,
                 .kept = 30};
    const Sent sent = select(c);
    Values numbers(to_size(kCount)), velocity(to_size(kCount));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      velocity[i] = 0.5f * c.velocity[i] + c.gradient[i];
      numbers[i] = 2 * c.residual[i] + (nesterov ? c.gradient[i] + 0.5f * velocity[i] : velocity[i]);
    }
    ASSERT_GT(sent.count(), 20);
    for (std::int64_t k = 0; k < sent.count(); ++k) {
      const std::size_t i = to_size(sent.indices[to_size(k)]);
      EXPECT_NEAR(sent.values[to_size(k)], numbers[i], std::abs(numbers[i]) / 256);
      velocity[i] *= kept_velocity;
      EXPECT_NEAR(sent.velocity[i], velocity[i], kept_velocity == 0 ? 0 : 1e-6);
      numbers[i] -= sent.values[to_size(k)];
    }
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      ASSERT_NEAR(2 * sent.residual[i], numbers[i], 2e-6);
      ASSERT_NEAR(sent.velocity[i], velocity[i], 1e-6);
    }
  }
}

// The first number sent is a NaN, even if the sample misses the bad value or more elements qualify than fit.
TEST(Sparse, NonFiniteValuesAreAlwaysSent) {
  for (const std::int64_t count : {10, 4099, 1'000'000}) {
    const Values finite = peaked_values(count, "gradient");
    for (const float bad : {std::nanf(""), kInfinity, -kInfinity}) {
      for (const std::int64_t place : {std::int64_t{0}, count / 2 + 1, count - 1}) {
        Values gradient = finite;
        gradient[to_size(place)] = bad;
        const Sent sent = select({.gradient = gradient, .kept = std::max<std::int64_t>(1, count / 1000)});
        ASSERT_GT(sent.count(), 0);
        EXPECT_TRUE(std::isnan(sent.values[0])) << bad << " at " << place << " of " << count;
      }
    }
  }
}

TEST(Sparse, ClippingKeepsTheDirection) {
  Stream stream(Device{}, StreamUse::compute);
  const GuardedMemory gradient(Values{30, 0, -40});
  const float loss_scale = 10;
  const auto factor = [&](float most, const float* values) {
    float clip = -1;
    cpu_backend().sparse_clip(
        stream, {.count = 3, .gradient = values, .loss_scale = &loss_scale, .most = most, .clip = &clip});
    return clip;
  };
  EXPECT_EQ(factor(5, gradient.floats()), 1);
  EXPECT_FLOAT_EQ(factor(1, gradient.floats()), 0.2f);
  const GuardedMemory bad(Values{1, std::nanf(""), 0}), endless(Values{1, kInfinity, 0});
  EXPECT_TRUE(std::isnan(factor(1, bad.floats())));
  EXPECT_TRUE(std::isnan(factor(1, endless.floats()) * kInfinity)) << "the factor times infinity must be NaN";
}

// Two pages, the second one short. Messages of three ranks, with other words between them.
TEST(Sparse, SumsAddAllRanksInTheirOrder) {
  Stream stream(Device{}, StreamUse::compute);
  constexpr SparseMessage kShape{.count = SparseMessage::kPage + 3, .capacity = 3};
  static_assert(kShape.pages() == 2 && kShape.words() == 6);
  const auto word = [](float value, std::uint32_t place) {
    return std::bit_cast<std::uint32_t>(value) | place;
  };
  const std::uint32_t stray = word(99, 0);
  const std::uint32_t messages[] = {
      0,     1,     2,     word(1, 0), word(1, 1),        stray,      stray, stray,  // 1 at 0 and at 65537
      0,     1,     3,     word(3, 9), word(0x1p-24f, 1), word(4, 2), stray, stray, 0, 0, 1, word(-1, 1),
      stray, stray, stray, stray};
  const GuardedMemory sums(Values(to_size(kShape.count), 5.0f));
  const float loss_scale = 2;
  cpu_backend().sparse_sum(stream, {.shape = kShape,
                                    .ranks = 3,
                                    .messages = messages,
                                    .stride = 8,
                                    .loss_scale = &loss_scale,
                                    .sums = sums.floats()});
  Values expected(to_size(kShape.count), 0.0f);
  expected[0] = 2;
  expected[9] = 6;
  expected[65537] = 0;  // 1 + 2^-24 rounds to 1, but -1 + 2^-24 is exact
  expected[65538] = 8;
  EXPECT_EQ(sums.values(), expected);
  EXPECT_TRUE(sums.margin_intact());
}

}  // namespace
}  // namespace lockstep
