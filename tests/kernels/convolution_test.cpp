// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "core/system/processors.h"
#include "kernels/cpu/winograd.h"
#include "tests/kernels/affine_contract.h"
#include "tests/message_of.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

struct NamedShape {
  const char* name;
  ConvolutionShape shape;
};

ConvolutionShape shape(std::int64_t in_channels, std::int64_t out_channels, std::int64_t size,
                       ConvolutionShape rest) {
  rest.batch = rest.batch == 0 ? 2 : rest.batch;
  rest.in_channels = in_channels;
  rest.out_channels = out_channels;
  rest.in_height = size;
  rest.in_width = rest.in_width == 0 ? size : rest.in_width;
  return rest;
}

const NamedShape kShapes[] = {
    {"pointwise", shape(16, 32, 8, {.kernel = 1})},
    {"pointwise_strided", shape(32, 16, 8, {.kernel = 1, .stride = 2, .bias = true})},
    {"3x3", shape(16, 16, 8, {.kernel = 3, .padding = 1})},
    {"3x3_bias", shape(32, 16, 8, {.kernel = 3, .padding = 1, .bias = true})},
    {"3x3_unpadded", shape(16, 32, 8, {.kernel = 3})},
    {"3x3_strided", shape(16, 32, 9, {.kernel = 3, .stride = 2, .padding = 1})},
    {"3x3_dilated", shape(16, 16, 9, {.kernel = 3, .padding = 2, .dilation = 2, .bias = true})},
    {"gray_image", shape(1, 16, 12, {.kernel = 5, .padding = 2, .bias = true})},
    {"colour_image", shape(3, 32, 8, {.kernel = 3, .padding = 1})},
    {"resnet_stem", shape(3, 16, 16, {.kernel = 7, .stride = 2, .padding = 3})},
    {"5_to_17_channels", shape(5, 17, 7, {.kernel = 3, .padding = 1, .bias = true})},
    {"17_to_5_channels", shape(17, 5, 7, {.kernel = 3, .padding = 1})},
    {"17_to_17_channels", shape(17, 17, 6, {.kernel = 3, .stride = 2, .padding = 1, .bias = true})},
    {"48_to_80_channels", shape(48, 80, 9, {.kernel = 3, .padding = 1, .bias = true})},
    {"24_to_40_channels", shape(24, 40, 10, {.kernel = 3, .padding = 1, .bias = true})},
    {"wide_padding", shape(64, 48, 6, {.kernel = 3, .padding = 2})},
    {"one_output", shape(16, 1, 5, {.kernel = 1, .bias = true})},
    {"batch_of_one", shape(16, 16, 7, {.batch = 1, .kernel = 3, .padding = 1})},
    {"whole_image", shape(16, 32, 7, {.kernel = 7, .bias = true})},
    {"two_groups", shape(32, 32, 8, {.kernel = 3, .padding = 1, .groups = 2})},
    {"two_small_groups", shape(6, 10, 7, {.kernel = 3, .padding = 1, .groups = 2, .bias = true})},
    {"depthwise", shape(16, 16, 8, {.kernel = 3, .padding = 1, .groups = 16, .bias = true})},
    {"wide_image", shape(16, 32, 5, {.in_width = 11, .kernel = 3, .padding = 1, .bias = true})},
    {"tall_image", shape(32, 16, 13, {.in_width = 6, .kernel = 3, .padding = 1})},
    {"wide_image_strided", shape(16, 32, 7, {.in_width = 12, .kernel = 3, .stride = 2, .padding = 1})},
    {"wide_colour_image", shape(3, 16, 6, {.in_width = 15, .kernel = 5, .padding = 2})},
    {"wide_depthwise", shape(32, 32, 5, {.in_width = 9, .kernel = 3, .padding = 1, .groups = 32})},
    {"one_pixel", shape(16, 32, 1, {.kernel = 1, .bias = true})},
    {"one_pixel_3x3", shape(32, 16, 1, {.kernel = 3, .padding = 1})},
    {"one_pixel_strided", shape(16, 16, 1, {.kernel = 3, .stride = 2, .padding = 1})},
    {"one_row", shape(16, 16, 1, {.in_width = 10, .kernel = 3, .padding = 1})},
    {"one_column", shape(16, 16, 10, {.in_width = 1, .kernel = 3, .padding = 1})},
    {"depthwise_17", shape(17, 17, 7, {.kernel = 3, .stride = 2, .padding = 1, .groups = 17})},
    // Pixels that no output reads, outputs that read no pixel, and weights that only the padding meets.
    {"stride_past_the_kernel", shape(16, 32, 8, {.kernel = 2, .stride = 3})},
    {"padding_past_the_kernel", shape(16, 16, 4, {.kernel = 3, .padding = 4, .bias = true})},
    {"dilation_past_the_image", shape(16, 16, 4, {.kernel = 3, .padding = 4, .dilation = 4})},
};

class Convolution : public testing::TestWithParam<NamedShape> {
 protected:
  const ConvolutionShape s = GetParam().shape;
};

// Checks the first candidate against the contract.
void expect_convolution(const ConvolutionShape& s, const Layout& input) {
  const auto kernel = planned_convolution(s, input);
  EXPECT_EQ(directions_by(*kernel, "direct"), 3);
  EXPECT_EQ(kernel->input(), input);
  EXPECT_EQ(kernel->output().shape(), Shape({s.batch, s.out_channels, s.out_height(), s.out_width()}));
  EXPECT_EQ(kernel->weights().shape(), Shape({s.out_channels, s.in_channels / s.groups, s.kernel, s.kernel}));
  EXPECT_EQ(kernel->output().dtype(), input.dtype());
  EXPECT_EQ(kernel->weights().dtype(), input.dtype());
  expect_affine_contract(*kernel, s);
}

TEST_P(Convolution, MatchesTheReferenceOnPlainInput) {
  for (const DType type : kTypes) {
    SCOPED_TRACE(name_of(type));
    expect_convolution(s, Layout({s.batch, s.in_channels, s.in_height, s.in_width}, type));
  }
}

// As inside a network: the input has the layout of the previous convolution's output.
TEST_P(Convolution, MatchesTheReferenceOnTheOutputOfAConvolution) {
  const ConvolutionShape before = {.batch = s.batch,
                                   .in_channels = 16,
                                   .in_height = s.in_height,
                                   .in_width = s.in_width,
                                   .out_channels = s.in_channels};
  for (const DType type : kTypes) {
    SCOPED_TRACE(name_of(type));
    const Layout image({s.batch, 16, s.in_height, s.in_width}, type);
    expect_convolution(s, planned_convolution(before, image)->output());
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Convolution, testing::ValuesIn(kShapes),
                         [](const auto& named) { return std::string(named.param.name); });

// A candidate of timed choices, tested on every shape that has it. The tests above cover the first one,
// direct.
struct NamedCandidate {
  const char* test;
  const char* candidate;
  // True for shapes that have the candidate in all three directions. Null if oneDNN and the processor decide.
  bool (*expected)(const ConvolutionShape& shape) = nullptr;
  std::int64_t batch = 4;

  // oneDNN computes each product of plain pieces separately, which takes seconds. So only 2 pieces of fp32
  // try the larger shapes: more pieces and the conversion of pieces to fp32 do not depend on the shape.
  bool tries(const ConvolutionShape& s, DType type) const {
    const std::string_view name = candidate;
    if (!name.ends_with("pieces")) return true;
    const bool fewer = name.starts_with("direct") && (name != "direct in 2 pieces" || type != DType::f32);
    const std::int64_t products =
        s.out_channels * s.in_channels / s.groups * s.kernel * s.kernel * s.out_height() * s.out_width();
    return products <= (fewer ? 60'000 : 200'000);
  }
};
bool everywhere(const ConvolutionShape&) { return true; }

class ConvolutionCandidate : public testing::TestWithParam<NamedCandidate> {};

TEST_P(ConvolutionCandidate, MatchesTheReference) {
  const NamedCandidate& c = GetParam();
  int found = 0;
  Thinning thinning;
  for (const DType type : kTypes) {
    for (const NamedShape& named : kShapes) {
      ConvolutionShape s = named.shape;
      s.batch = c.batch;
      if (!c.tries(s, type)) continue;
      SCOPED_TRACE(fmt::format("{} in {}", named.name, name_of(type)));
      for (const Layout& input : layouts_for({s.batch, s.in_channels, s.in_height, s.in_width}, type)) {
        const auto kernel = convolution_by(c.candidate, s, input);
        if (c.expected != nullptr) {
          EXPECT_EQ(kernel ? directions_by(*kernel, c.candidate) : 0, c.expected(s) ? 3 : 0)
              << input.describe();
        }
        if (!kernel) continue;
        ++found;
        if (!thinning.takes()) continue;
        expect_affine_contract(*kernel, s);
      }
    }
  }
  if (found == 0) GTEST_SKIP() << "no shape has " << c.candidate << " on this processor";
}

INSTANTIATE_TEST_SUITE_P(
    Candidates, ConvolutionCandidate,
    testing::Values(NamedCandidate{"DirectIn2", "direct in 2 pieces", everywhere},
                    NamedCandidate{"DirectIn4", "direct in 4 pieces", everywhere},
                    NamedCandidate{"DirectIn8", "direct in 8 pieces", everywhere, 8},
                    NamedCandidate{"DirectBf16", "direct bf16"}, NamedCandidate{"Winograd", "winograd"},
                    NamedCandidate{"WinogradIn2", "winograd in 2 pieces"},
                    NamedCandidate{"WinogradIn4", "winograd in 4 pieces"},
                    NamedCandidate{"WinogradIn8", "winograd in 8 pieces", nullptr, 8},
                    NamedCandidate{"TiledWinograd", "tiled winograd", WinogradConvolution::supports}),
    [](const auto& named) { return std::string(named.param.test); });

// Each direction may use another candidate, whatever layouts the forward candidate chose.
TEST(ConvolutionCandidates, MayDifferByDirection) {
  const ConvolutionShape s = shape(32, 48, 8, {.kernel = 3, .padding = 1, .bias = true});
  const Layout input({s.batch, 32, 8, 8}, DType::bf16);
  KernelChoices timed(ChooseBy::time);
  backend_for(Device{}).convolution(s, input, timed);
  ASSERT_EQ(timed.kept().size(), 3u);
  const char* candidates[] = {"direct", "direct bf16", "tiled winograd"};
  for (const char* candidate : candidates) {
    if (!convolution_by(candidate, s, input)) GTEST_SKIP() << "no " << candidate << " on this processor";
  }
  for (int shift = 0; shift < 3; ++shift) {
    KernelChoices choices(ChooseBy::time);
    int direction = shift;
    for (const auto& [key, choice] : timed.kept())
      choices.keep(key, {.candidate = candidates[direction++ % 3], .microseconds = 1});
    const auto kernel = backend_for(Device{}).convolution(s, input, choices);
    for (const char* candidate : candidates)
      EXPECT_EQ(directions_by(*kernel, candidate), 1) << candidate << ", shift " << shift;
    expect_affine_contract(*kernel, s);
  }
}

TEST(ConvolutionCandidates, WinogradUsesBlocksThatFillRegisters) {
  const auto block = [](std::int64_t in, std::int64_t out, ConvolutionShape s) {
    s.in_channels = in;
    s.out_channels = out;
    return WinogradConvolution::channel_block(s);
  };
  const ConvolutionShape s = shape(16, 16, 8, {.kernel = 3, .padding = 1});
#if defined(__aarch64__)
  const std::int64_t most = 4;
#else
  const std::int64_t most = instruction_set() == InstructionSet::avx512 ? 16
                            : instruction_set() == InstructionSet::avx2 ? 8
                                                                        : 0;
#endif
  EXPECT_EQ(block(32, 48, s), most);
  EXPECT_EQ(block(24, 40, s), std::min<std::int64_t>(most, 8));
  EXPECT_EQ(block(12, 16, s), most == 4 ? 4 : 0);
  EXPECT_EQ(block(18, 16, s), 0);
  ConvolutionShape strided = s, padded = s, grouped = s;
  strided.stride = 2;
  padded.padding = 3;
  grouped.groups = 2;
  for (const ConvolutionShape& other : {strided, padded, grouped}) EXPECT_EQ(block(32, 48, other), 0);
}

TEST(ConvolutionCandidates, WinogradTransformsManyWeightsBlockByBlock) {
  // 264 and 272 are no multiples of 64, and 264 is none of 16.
  for (const auto& [in, out] : {std::pair{256, 512}, {264, 512}, {256, 272}, {256, 264}}) {
    // A width of 65 gives 17 tiles, so that each number of tiles that a product computes at once occurs.
    const ConvolutionShape s =
        shape(in, out, 1, {.batch = 1, .in_width = 65, .kernel = 3, .padding = 1, .bias = true});
    const auto kernel = convolution_by("tiled winograd", s, Layout({1, in, 1, 65}, DType::f32));
    if (!kernel) GTEST_SKIP() << "needs AVX2 or AVX-512";
    expect_affine_contract(*kernel, s);
  }
}

TEST(ConvolutionActivation, IsAppliedToTheOutput) {
  for (const Activation activation : {Activation::relu, Activation::relu6}) {
    for (const std::int64_t channels : {17, 32}) {
      ConvolutionShape s = shape(16, channels, 8, {.kernel = 3, .padding = 1, .bias = true});
      s.activation = activation;
      for (const char* candidate : {"direct", "winograd", "tiled winograd", "direct bf16",
                                    "direct in 2 pieces", "winograd in 2 pieces"}) {
        for (const DType type : kTypes) {
          const bool in_pieces = std::string_view(candidate).ends_with("pieces");
          const Layout input =
              in_pieces ? layouts_for({2, 16, 8, 8}, type).back() : Layout({2, 16, 8, 8}, type);
          const auto kernel = convolution_by(candidate, s, input);
          if (kernel) expect_affine_contract(*kernel, s);
        }
      }
    }
  }
}

TEST(ConvolutionOutput, PlanningTwiceGivesTheSameLayouts) {
  const ConvolutionShape s = shape(17, 33, 7, {.kernel = 3, .padding = 1});
  const Layout input({s.batch, 17, 7, 7}, DType::f32);
  const auto one = planned_convolution(s, input);
  const auto other = planned_convolution(s, input);
  EXPECT_EQ(one->weights(), other->weights());
  EXPECT_EQ(one->output().describe(), other->output().describe());
}

TEST(ConvolutionErrors, NameChannelsThatDoNotDivideIntoGroups) {
  const ConvolutionShape s = shape(10, 12, 7, {.kernel = 3, .groups = 4});
  expect_parts(message_of<ConfigError>([&] {
                 planned_convolution(s, Layout({2, 10, 7, 7}, DType::f32));
               }),
               {"10 -> 12", "4 groups"});
}

TEST(ConvolutionErrors, RefuseAKernelLargerThanThePaddedImage) {
  // The formula rounded down would still give one output pixel.
  const ConvolutionShape s = shape(3, 8, 4, {.kernel = 5, .stride = 2});
  EXPECT_THROW(planned_convolution(s, Layout({2, 3, 4, 4}, DType::f32)), ConfigError);
  const ConvolutionShape dilated = shape(3, 8, 4, {.kernel = 3, .dilation = 2});
  EXPECT_THROW(planned_convolution(dilated, Layout({2, 3, 4, 4}, DType::f32)), ConfigError);
}

TEST(ConvolutionErrors, RefuseAnInputOfAnotherShape) {
  const ConvolutionShape s = shape(3, 8, 7, {.kernel = 3});
  EXPECT_THROW(planned_convolution(s, Layout({2, 3, 7, 8}, DType::f32)), ConfigError);
  EXPECT_THROW(planned_convolution(s, Layout({2, 7, 7, 3}, DType::f32)), ConfigError);
}

TEST(ConvolutionErrors, RefuseSizesBelowOne) {
  for (ConvolutionShape s :
       {shape(-3, 8, 7, {.kernel = 3}), shape(3, 0, 7, {.kernel = 3}), shape(3, 8, 7, {.kernel = 0}),
        shape(3, 8, 7, {.kernel = 3, .stride = 0}), shape(3, 8, 7, {.kernel = 3, .padding = -1}),
        shape(3, 8, 7, {.kernel = 3, .dilation = 0}), shape(3, 8, 7, {.kernel = 3, .groups = 0})}) {
    EXPECT_THROW(planned_convolution(s, Layout({2, 3, 7, 7}, DType::f32)), ConfigError);
  }
}

}  // namespace
}  // namespace lockstep
