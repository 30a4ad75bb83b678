// SPDX-License-Identifier: Apache-2.0
//
// Upsampling, concatenation and targets of pixels. Networks test their layouts
// (tests/models/network_test.cpp).
#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "tests/kernels/planned_memory.h"

namespace lockstep {
namespace {

TEST(Upsampling, RepeatsPixelsAndSumsTheirGradients) {
  Stream stream(Device{}, StreamUse::compute);
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const UpsamplingShape& size : {UpsamplingShape{1, 1, 1, 1, 2},
                                        {2, 3, 4, 5, 2},
                                        {3, 2, 5, 16, 3},
                                        {2, 16, 16, 40, 2},
                                        {1, 3, 2, 1, 1}}) {
      UpsamplingShape s = size;
      s.type = type;
      const std::int64_t large = s.small_elements() * s.factor * s.factor;
      SCOPED_TRACE(fmt::format("{}x{}x{}x{} by {} in {}", s.outer, s.height, s.width, s.inner, s.factor,
                               name_of(type)));
      const Values x = rounded(random_values(s.small_elements(), "x"), type);
      const Values y_gradient = rounded(random_values(large, "y gradient"), type);
      const GuardedMemory input(x, type), output(static_cast<std::size_t>(large) * size_of(type), type),
          given(y_gradient, type), result(x.size() * size_of(type), type);
      cpu_backend().upsample_forward(stream, {s, input.data(), output.data()});
      cpu_backend().upsample_backward(stream, {s, given.data(), result.data()});
      EXPECT_TRUE(output.margin_intact() && result.margin_intact());
      const Values y = output.values(), x_gradient = result.values();
      Doubles sums(x.size());
      std::size_t at = 0;
      for (std::int64_t outer = 0; outer < s.outer; ++outer)
        for (std::int64_t row = 0; row < s.height * s.factor; ++row)
          for (std::int64_t column = 0; column < s.width * s.factor; ++column)
            for (std::int64_t i = 0; i < s.inner; ++i, ++at) {
              const auto from = static_cast<std::size_t>(
                  ((outer * s.height + row / s.factor) * s.width + column / s.factor) * s.inner + i);
              ASSERT_EQ(y[at], x[from]) << at;
              sums[from] += static_cast<double>(y_gradient[at]);
            }
      const double precision = type == DType::f32 ? 1e-6 : type == DType::f16 ? 4e-3 : 4e-2;
      for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x_gradient[i], sums[i], precision) << i;
    }
  }
}

TEST(Concatenation, JoinsRowsAndSeparatesThem) {
  Stream stream(Device{}, StreamUse::compute);
  for (const ConcatenationShape& s : {ConcatenationShape{1, 1, 1}, {3, 4, 2}, {50, 700, 100}}) {
    const Values a = random_values(s.rows * s.a_elements, "a"), b = random_values(s.rows * s.b_elements, "b");
    const GuardedMemory of_a(a), of_b(b), joined((a.size() + b.size()) * sizeof(float)),
        back_a(a.size() * sizeof(float)), back_b(b.size() * sizeof(float));
    cpu_backend().concatenate(stream, {s, of_a.data(), of_b.data(), joined.data()});
    Values expected;
    for (std::int64_t row = 0; row < s.rows; ++row) {
      expected.insert(expected.end(), a.begin() + row * s.a_elements, a.begin() + (row + 1) * s.a_elements);
      expected.insert(expected.end(), b.begin() + row * s.b_elements, b.begin() + (row + 1) * s.b_elements);
    }
    EXPECT_EQ(joined.values(), expected);
    cpu_backend().separate(stream, {s, joined.data(), back_a.data(), nullptr});
    cpu_backend().separate(stream, {s, joined.data(), nullptr, back_b.data()});
    EXPECT_EQ(back_a.values(), a);
    EXPECT_EQ(back_b.values(), b);
    EXPECT_TRUE(joined.margin_intact() && back_a.margin_intact() && back_b.margin_intact());
  }
}

TEST(PixelTargets, ShareTheWeightOfAnImageAmongPixelsThatAreNotIgnored) {
  Stream stream(Device{}, StreamUse::compute);
  const std::vector<std::uint8_t> masks = {0, 3, 255, 1, 255, 255, 255, 255, 2, 2, 2, 2};
  const std::vector<float> weights = {1.5f, 1, 0};
  std::vector<std::int32_t> labels(masks.size());
  std::vector<float> pixel_weights(masks.size());
  const auto run = [&](bool share) {
    cpu_backend().pixel_targets(stream, {.batch = 3,
                                         .pixels = 4,
                                         .masks = masks.data(),
                                         .weights = weights.data(),
                                         .share_weight = share,
                                         .labels = labels.data(),
                                         .pixel_weights = pixel_weights.data()});
  };
  run(true);
  EXPECT_EQ(labels, (std::vector<std::int32_t>{0, 3, 0, 1, 0, 0, 0, 0, 2, 2, 2, 2}));
  EXPECT_EQ(pixel_weights, (std::vector<float>{0.5, 0.5, 0, 0.5, 0, 0, 0, 0, 0, 0, 0, 0}));
  run(false);
  EXPECT_EQ(pixel_weights, (std::vector<float>{1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}));
}

}  // namespace
}  // namespace lockstep
