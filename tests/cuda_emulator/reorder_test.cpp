// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/reorder.h"

#include <numeric>

#include <gtest/gtest.h>

#include "kernels/cuda/layout.h"
#include "tests/cuda_emulator/device_memory.h"

namespace lockstep {
namespace {

// Converts plain memory to channels last, by the definition. Padding is zero.
Values arranged(const Values& plain, const ChannelsLast& a) {
  Values result(static_cast<std::size_t>(a.physical_elements()), 0.0f);
  for (std::int64_t o = 0; o < a.outer; ++o) {
    for (std::int64_t c = 0; c < a.channels; ++c) {
      for (std::int64_t p = 0; p < a.pixels; ++p) {
        result[static_cast<std::size_t>((o * a.pixels + p) * a.physical_channels + c)] =
            plain[static_cast<std::size_t>((o * a.channels + c) * a.pixels + p)];
      }
    }
  }
  return result;
}

Values reordered(const Values& from_values, const Layout& from, const Layout& to) {
  Stream stream(Device{}, StreamUse::compute);
  const DeviceMemory source(from_values, from.dtype());
  DeviceMemory target(to.bytes());
  return in_any_order([&] {
    target.spoil();
    cuda_reorder(stream, CudaReorder::between(from, to), source.data(), target.data());
    return target.values(to.dtype());
  });
}

const ChannelsLast kArrangements[] = {{2, 3, 5, 3},    {2, 3, 5, 4},    {1, 64, 49, 64},  {3, 33, 31, 33},
                                      {5, 40, 65, 48}, {7, 1, 9, 4},    {2, 100, 1, 104}, {70, 2, 2, 2},
                                      {1, 1, 1, 1},    {2, 31, 100, 31}};

TEST(CudaReorder, RoundTripKeepsEveryElementAndFillsPaddingWithZeros) {
  for (const DType type : kElementTypes) {
    for (const ChannelsLast& a : kArrangements) {
      const Shape shape{a.outer, a.channels, a.pixels, 1};
      const Layout plain(shape, type), last = channels_last_layout(shape, type, a);
      SCOPED_TRACE(last.describe());
      const Values values = rounded(random_values(shape.elements(), "plain"), type);
      const Values there = reordered(values, plain, last);
      EXPECT_EQ(there, arranged(values, a));
      EXPECT_EQ(reordered(there, last, plain), values);
    }
  }
}

// The rows of the view are the plain tensor, with zeros for padded channels.
TEST(CudaLayout, MatrixViewContainsEveryElementOnce) {
  for (const ChannelsLast& a : kArrangements) {
    const Layout last = channels_last_layout({a.outer, a.channels, a.pixels, 1}, DType::f32, a);
    SCOPED_TRACE(last.describe());
    Values numbers(static_cast<std::size_t>(a.outer * a.channels * a.pixels));
    std::iota(numbers.begin(), numbers.end(), 1.0f);
    const Values memory = arranged(numbers, a);
    const MatrixView view = last.matrix_view();
    EXPECT_EQ(view.rows(), a.outer);
    EXPECT_EQ(view.rows() * view.columns(), last.physical_elements());
    Values walked;
    for (std::int64_t row = 0; row < view.rows(); ++row) {
      for (std::int64_t column = 0; column < view.columns(); ++column) {
        const float value =
            memory.at(static_cast<std::size_t>(view.row_offset(row) + view.column_offset(column)));
        if (value != 0) walked.push_back(value);
      }
    }
    EXPECT_EQ(walked, numbers);
  }
}

TEST(CudaReorder, ChangesThePaddingOfChannels) {
  for (const DType type : kElementTypes) {
    const ChannelsLast three{4, 3, 50, 3}, four{4, 3, 50, 4};
    const Shape shape{4, 3, 10, 5};
    const Layout narrow = channels_last_layout(shape, type, three);
    const Layout wide = channels_last_layout(shape, type, four);
    const Values values = rounded(random_values(shape.elements(), "plain"), type);
    EXPECT_EQ(reordered(arranged(values, three), narrow, wide), arranged(values, four));
    EXPECT_EQ(reordered(arranged(values, four), wide, narrow), arranged(values, three));
  }
}

#if !defined(__SANITIZE_ADDRESS__)  // 70,000 blocks of fibers take half a minute
void expect_plain_becomes_channels_last(const Shape& shape, const ChannelsLast& a) {
  const Values values = rounded(random_values(shape.elements(), "plain"), DType::f16);
  const Layout plain(shape, DType::f16), last = channels_last_layout(shape, DType::f16, a);
  EXPECT_EQ(reordered(values, plain, last), arranged(values, a));
}

TEST(CudaReorder, SupportsMoreTensorsThanAGridHasBlocks) {
  expect_plain_becomes_channels_last({70'000, 2, 2, 1}, {70'000, 2, 2, 2});
}

// 2048 x 1024 pixels are one tile more than a grid has blocks.
TEST(CudaReorder, SupportsMoreRowsThanAGridHasBlocks) {
  expect_plain_becomes_channels_last({1, 2, 2048, 1025}, {1, 2, 2048 * 1025, 2});
}
#endif

TEST(CudaLayout, IsPlainIfItsMemoryIsPlain) {
  EXPECT_TRUE(channels_last_layout({8, 10, 1, 1}, DType::f16, {8, 10, 1, 10}).is_plain());
  EXPECT_TRUE(channels_last_layout({8, 1, 7, 7}, DType::f32, {8, 1, 49, 1}).is_plain());
  EXPECT_FALSE(channels_last_layout({8, 3, 1, 1}, DType::f16, {8, 3, 1, 4}).is_plain());
  EXPECT_FALSE(channels_last_layout({8, 2, 7, 7}, DType::f32, {8, 2, 49, 2}).is_plain());
}

TEST(CudaLayout, IsEqualIfArrangementAndTypeAreEqual) {
  const Shape shape{8, 3, 7, 7};
  const Layout four = channels_last_layout(shape, DType::f16, {8, 3, 49, 4});
  EXPECT_EQ(four.bytes(), 8u * 49 * 4 * 2);
  EXPECT_EQ(four, channels_last_layout(shape, DType::f16, {8, 3, 49, 4}));
  EXPECT_NE(four, channels_last_layout(shape, DType::f16, {8, 3, 49, 3}));
  EXPECT_NE(four.describe(), channels_last_layout(shape, DType::f16, {8, 3, 49, 3}).describe());
  EXPECT_NE(four, Layout(shape, DType::f16));
  const Layout single = four.as_type(DType::f32);
  EXPECT_EQ(single, channels_last_layout(shape, DType::f32, {8, 3, 49, 4}));
  EXPECT_EQ(single.as_type(DType::f16), four);
}

TEST(CudaLayout, RecognisesChannelsLastActivations) {
  EXPECT_FALSE(channels_last(Layout({2, 3, 4, 5}, DType::f32)));
  EXPECT_EQ(channels_last(Layout({2, 3}, DType::f32)), (ChannelsLast{2, 3, 1, 3}));
  EXPECT_EQ(channels_last(Layout({2, 1, 4, 5}, DType::f32)), (ChannelsLast{2, 1, 20, 1}));
  const ChannelsLast padded{2, 3, 20, 4};
  EXPECT_EQ(channels_last(channels_last_layout({2, 3, 4, 5}, DType::f32, padded)), padded);
}

}  // namespace
}  // namespace lockstep
