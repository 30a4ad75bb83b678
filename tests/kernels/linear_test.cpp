// SPDX-License-Identifier: Apache-2.0
#include <tuple>

#include <gtest/gtest.h>

#include "tests/kernels/affine_contract.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

// Checks each candidate. 16-bit candidates do not exist for every type and processor.
void expect_linear(const LinearShape& s, const Layout& input) {
  for (const char* candidate : {"inner product", "inner product bf16"}) {
    SCOPED_TRACE(candidate);
    const auto kernel = linear_by(candidate, s, input);
    if (!kernel) {
      EXPECT_STREQ(candidate, "inner product bf16");
      continue;
    }
    EXPECT_EQ(kernel->input(), input);
    EXPECT_EQ(kernel->output(), Layout({s.batch, s.out_features}, input.dtype()));
    EXPECT_EQ(kernel->weights().shape(), Shape({s.out_features, s.in_features}));
    EXPECT_EQ(kernel->weights().dtype(), input.dtype());
    expect_affine_contract(*kernel, as_convolution(s));
  }
}

class Linear : public testing::TestWithParam<std::tuple<LinearShape, DType>> {};

TEST_P(Linear, MatchesTheReferenceOnPlainFeatures) {
  const auto& [s, type] = GetParam();
  expect_linear(s, Layout({s.batch, s.in_features}, type));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Linear,
    testing::Combine(testing::Values(LinearShape{.batch = 8, .in_features = 64, .out_features = 32},
                                     LinearShape{
                                         .batch = 8, .in_features = 64, .out_features = 10, .bias = false},
                                     LinearShape{.batch = 1, .in_features = 17, .out_features = 5},
                                     LinearShape{.batch = 3, .in_features = 1, .out_features = 1},
                                     LinearShape{.batch = 32, .in_features = 784, .out_features = 128}),
                     testing::ValuesIn(kTypes)));

// Images flattened in C, H, W order, from a plain layout or from that of a convolution's output.
class LinearOfImages : public testing::TestWithParam<std::tuple<std::int64_t, DType>> {};

TEST_P(LinearOfImages, MatchesTheReferenceOnPlainImages) {
  const auto [channels, type] = GetParam();
  const LinearShape s{.batch = 2, .in_features = channels * 35, .out_features = 11};
  expect_linear(s, Layout({2, channels, 5, 7}, type));
}

TEST_P(LinearOfImages, MatchesTheReferenceOnTheOutputOfAConvolution) {
  const auto [channels, type] = GetParam();
  const ConvolutionShape before{
      .batch = 2, .in_channels = 16, .in_height = 5, .in_width = 7, .out_channels = channels};
  const Layout input = planned_convolution(before, Layout({2, 16, 5, 7}, type))->output();
  const LinearShape s{.batch = 2, .in_features = channels * 35, .out_features = 11};
  expect_linear(s, input);
}

INSTANTIATE_TEST_SUITE_P(Channels, LinearOfImages,
                         testing::Combine(testing::Values(1, 3, 16, 17, 32), testing::ValuesIn(kTypes)));

TEST(LinearActivation, IsAppliedToTheOutput) {
  const LinearShape s{.batch = 3, .in_features = 40, .out_features = 17, .activation = Activation::relu};
  for (const DType type : kTypes)
    expect_affine_contract(*planned_linear(s, Layout({3, 40}, type)), as_convolution(s));
}

TEST(LinearErrors, RefuseAnotherNumberOfFeatures) {
  const LinearShape s{.batch = 4, .in_features = 100, .out_features = 10};
  EXPECT_THROW(planned_linear(s, Layout({5, 80}, DType::f32)), ConfigError);
  const auto refused = [&] { planned_linear(s, Layout({4, 99}, DType::f32)); };
  expect_parts(message_of<ConfigError>(refused), {"linear", "[4, 99]", "100 features"});
}

TEST(LinearErrors, RefuseSizesBelowOne) {
  EXPECT_THROW(
      planned_linear({.batch = 4, .in_features = 100, .out_features = 0}, Layout({4, 100}, DType::f32)),
      ConfigError);
}

}  // namespace
}  // namespace lockstep
