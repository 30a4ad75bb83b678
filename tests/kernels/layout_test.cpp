// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/layout.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/affine_reference.h"
#include "tests/kernels/planned_memory.h"

namespace lockstep {
namespace {

Layout blocked(std::int64_t channels, DType type = DType::f32) {
  const ConvolutionShape shape{
      .batch = 2, .in_channels = 16, .in_height = 5, .in_width = 6, .out_channels = channels};
  return planned_convolution(shape, Layout({2, 16, 5, 6}, type))->output();
}

TEST(Layout, PlainLayoutsAreEqualExactlyIfShapeAndTypeAre) {
  const Layout layout({2, 3}, DType::f32);
  EXPECT_TRUE(layout.is_plain());
  EXPECT_EQ(layout.bytes(), 24u);
  EXPECT_EQ(layout, Layout({2, 3}, DType::f32));
  EXPECT_NE(layout, Layout({3, 2}, DType::f32));
  EXPECT_NE(layout, Layout({2, 3}, DType::i32));
  EXPECT_NE(layout.describe(), Layout({2, 3}, DType::i32).describe());
}

TEST(Layout, BlockedLayoutsDifferFromPlainOnes) {
  const Layout layout = blocked(32);
  const Layout plain(layout.shape(), DType::f32);
  if (layout.is_plain()) GTEST_SKIP() << "this CPU's convolutions keep plain layouts";
  EXPECT_NE(layout, plain);
  EXPECT_NE(layout.describe(), plain.describe());
  EXPECT_EQ(layout, blocked(32));
  EXPECT_EQ(layout.describe(), blocked(32).describe());
}

TEST(Layout, AsTypeKeepsTheArrangement) {
  for (const DType type : {DType::f16, DType::bf16}) {
    EXPECT_EQ(blocked(32).as_type(type), blocked(32, type));
    EXPECT_EQ(blocked(32, type).as_type(DType::f32), blocked(32));
    EXPECT_EQ(blocked(17, type).physical_elements(), blocked(17).physical_elements());
    EXPECT_EQ(2 * blocked(17, type).bytes(), blocked(17).bytes());
    EXPECT_NE(blocked(32), blocked(32, type));
  }
}

TEST(Reorder, RoundTripKeepsEveryElement) {
  for (const DType type : kTypes) {
    for (const std::int64_t channels : {1, 3, 16, 17, 32}) {
      const Layout layout = blocked(channels, type);
      const Values values = rounded(random_values(layout.shape().elements(), "round trip"), type);
      EXPECT_EQ(to_plain(to_memory(values, layout), layout), values) << layout.describe();
    }
  }
}

// Row by row the view gives the plain tensor, with zeros where the layout pads, and contains every physical
// element once.
void expect_view_of_all(const Layout& weights) {
  const Layout layout = weights.as_type(DType::f32);
  SCOPED_TRACE(layout.describe());
  const MatrixView view = layout.matrix_view();
  Values numbers(static_cast<std::size_t>(layout.shape().elements()));
  std::iota(numbers.begin(), numbers.end(), 1.0f);
  const Buffer memory = to_memory(numbers, layout);
  const auto* elements = reinterpret_cast<const float*>(memory.data());
  std::vector<int> visits(static_cast<std::size_t>(layout.physical_elements()));
  Values walked;
  for (std::int64_t row = 0; row < view.rows(); ++row) {
    for (std::int64_t column = 0; column < view.columns(); ++column) {
      const std::int64_t at = view.row_offset(row) + view.column_offset(column);
      ++visits.at(static_cast<std::size_t>(at));
      if (elements[at] != 0) walked.push_back(elements[at]);
    }
  }
  EXPECT_EQ(std::ranges::count(visits, 1), std::ssize(visits));
  EXPECT_EQ(walked, numbers);
  const bool padded = layout.physical_elements() > layout.shape().elements();
  EXPECT_TRUE(padded || view.rows() == layout.shape()[0]) << view.rows();
  EXPECT_GE(view.rows(), layout.shape()[0]);
}

TEST(MatrixView, ContainsEveryElementOfConvolutionWeightsOnce) {
  struct Weights {
    std::int64_t in, out, kernel, groups;
  };
  constexpr Weights kWeights[] = {{1, 32, 3, 1},   {3, 64, 7, 1},   {3, 17, 3, 1},  {16, 32, 3, 1},
                                  {48, 32, 3, 1},  {17, 33, 1, 1},  {64, 16, 1, 1}, {33, 1, 3, 1},
                                  {32, 32, 3, 32}, {24, 48, 3, 24}, {32, 64, 3, 4}, {6, 10, 3, 2}};
  for (const Weights& c : kWeights) {
    const ConvolutionShape shape{.batch = 2,
                                 .in_channels = c.in,
                                 .in_height = 7,
                                 .in_width = 8,
                                 .out_channels = c.out,
                                 .kernel = c.kernel,
                                 .padding = c.kernel / 2,
                                 .groups = c.groups};
    for (const DType type : {DType::f32, DType::bf16}) {
      for (const Layout& input : layouts_for({2, c.in, 7, 8}, type)) {
        expect_view_of_all(planned_convolution(shape, input)->weights());
        for (const char* candidate : {"direct bf16", "winograd", "tiled winograd"}) {
          if (const auto kernel = convolution_by(candidate, shape, input))
            expect_view_of_all(kernel->weights());
        }
      }
    }
  }
}

TEST(MatrixView, ContainsEveryElementOfLinearWeightsOnce) {
  for (const std::int64_t features : {1, 10, 33}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      for (const std::int64_t channels : {3, 17, 32}) {
        const LinearShape shape{.batch = 4, .in_features = channels * 30, .out_features = features};
        std::vector<Layout> inputs = layouts_for({4, channels, 5, 6}, type);
        inputs.emplace_back(Shape{4, channels * 30}, type);
        for (const Layout& input : inputs) {
          for (const char* candidate : {"inner product", "inner product bf16"}) {
            if (const auto kernel = linear_by(candidate, shape, input)) expect_view_of_all(kernel->weights());
          }
        }
      }
    }
  }
}

TEST(MatrixView, HasTheFirstDimensionAsRowsForPlainLayouts) {
  const auto expect = [](const Shape& shape, std::int64_t rows, std::int64_t columns) {
    const MatrixView view = Layout(shape, DType::f32).matrix_view();
    EXPECT_EQ(view.rows(), rows) << to_string(shape);
    EXPECT_EQ(view.columns(), columns) << to_string(shape);
    EXPECT_EQ(view.row_offset(rows - 1), (rows - 1) * columns);
    EXPECT_EQ(view.column_offset(columns - 1), columns - 1);
    EXPECT_LE(view.row_axes().size() + view.column_axes().size(), 2u);
  };
  expect({8, 4, 3, 3}, 8, 36);
  expect({10, 1}, 10, 1);
  expect({7}, 7, 1);
  expect({1, 5}, 1, 5);
}

// Weights are blocked in two dimensions, some of them twice.
TEST(Reorder, MovesSixteenBitElementsLikeFloats) {
  const ConvolutionShape shape{
      .batch = 2, .in_channels = 48, .in_height = 5, .in_width = 6, .out_channels = 32, .kernel = 3};
  for (const char* candidate : {"direct", "direct bf16"}) {
    const auto kernel = convolution_by(candidate, shape, Layout({2, 48, 5, 6}, DType::bf16));
    if (!kernel) continue;  // no kernel on this processor
    const Layout halves = kernel->weights();
    const Values values = rounded(random_values(halves.shape().elements(), "weights"), DType::bf16);
    const Layout floats = halves.as_type(DType::f32);
    const Buffer wide = to_memory(values, floats);
    const Values expected = from_elements(wide.data(), wide.bytes(), DType::f32);
    for (const DType type : {DType::f16, DType::bf16}) {
      const Buffer narrow = to_memory(values, halves.as_type(type));
      EXPECT_EQ(from_elements(narrow.data(), narrow.bytes(), type), rounded(expected, type))
          << halves.describe();
    }
  }
}

TEST(Reorder, KeepsEveryBitOfSixteenBitElements) {
  for (const DType type : {DType::f16, DType::bf16}) {
    const ConvolutionShape shape{
        .batch = 64, .in_channels = 16, .in_height = 8, .in_width = 8, .out_channels = 16};
    const Layout plain({64, 16, 8, 8}, type);
    const Layout layout = planned_convolution(shape, plain)->output();
    ASSERT_EQ(plain.shape().elements(), 1 << 16);
    std::vector<std::uint16_t> bits(1 << 16), back(1 << 16);
    for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
    Buffer memory(layout.bytes(), Device{});
    Stream stream(Device{}, StreamUse::compute);
    cpu_backend().reorder(plain, layout)->run(stream, bits.data(), memory.data());
    cpu_backend().reorder(layout, plain)->run(stream, memory.data(), back.data());
    EXPECT_EQ(back, bits) << name_of(type);
  }
}

TEST(Reorder, FillsPaddingWithZeros) {
  for (const DType type : kTypes) {
    const Layout layout = blocked(17, type);
    const Layout plain(layout.shape(), type);
    Stream stream(Device{}, StreamUse::compute);
    Buffer memory(layout.bytes(), Device{});
    std::memset(memory.data(), 0xff, memory.bytes());
    const Values ones(static_cast<std::size_t>(layout.shape().elements()), 1.0f);
    cpu_backend().reorder(plain, layout)->run(stream, to_elements(ones, type).data(), memory.data());
    double sum = 0;
    for (const float value : from_elements(memory.data(), memory.bytes(), type)) sum += value;
    EXPECT_EQ(sum, static_cast<double>(ones.size()));
  }
}

// Planned kernels run again with other addresses: nothing of the first run may remain.
TEST(Reorder, UsesTheAddressesOfEachRun) {
  const Layout layout = blocked(17);
  const Layout plain(layout.shape(), DType::f32);
  const auto there = cpu_backend().reorder(plain, layout);
  const auto back = cpu_backend().reorder(layout, plain);
  Stream stream(Device{}, StreamUse::compute);
  for (const char* purpose : {"first", "second", "third"}) {
    const Values values = random_values(plain.shape().elements(), purpose);
    Buffer memory(layout.bytes(), Device{});
    Values result(values.size());
    there->run(stream, values.data(), memory.data());
    back->run(stream, memory.data(), result.data());
    EXPECT_EQ(result, values) << purpose;
  }
}

TEST(Backend, WithoutCudaRefusesCudaDevices) {
  if (cuda_status().built) GTEST_SKIP() << "this build has CUDA kernels";
  EXPECT_THROW(backend_for({.kind = DeviceKind::cuda, .index = 0}), ConfigError);
}

TEST(Backend, DescribesItself) {
  const std::string text = cpu_backend().describe();
  EXPECT_NE(text.find("oneDNN"), std::string::npos) << text;
#if defined(__x86_64__)
  EXPECT_EQ(text.find("unknown"), std::string::npos) << text;
#endif
}

}  // namespace
}  // namespace lockstep
