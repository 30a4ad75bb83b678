// SPDX-License-Identifier: Apache-2.0
#include "kernels/layout.h"

#include <cstring>

#include <gtest/gtest.h>

#include "tests/kernels/affine_reference.h"
#include "tests/kernels/planned_memory.h"

namespace lockstep {
namespace {

Backend& cpu() { return backend_for(Device{}); }

Layout blocked(std::int64_t channels) {
  const ConvolutionShape shape{
      .batch = 2, .in_channels = 16, .in_height = 5, .in_width = 6, .out_channels = channels};
  return planned_convolution(shape, Layout({2, 16, 5, 6}, DType::f32))->output();
}

TEST(Layout, PlainOnesAreEqualExactlyIfShapeAndTypeAre) {
  const Layout layout({2, 3}, DType::f32);
  EXPECT_TRUE(layout.is_plain());
  EXPECT_EQ(layout.bytes(), 24u);
  EXPECT_EQ(layout, Layout({2, 3}, DType::f32));
  EXPECT_NE(layout, Layout({3, 2}, DType::f32));
  EXPECT_NE(layout, Layout({2, 3}, DType::i32));
  EXPECT_NE(layout.describe(), Layout({2, 3}, DType::i32).describe());
}

TEST(Layout, DescribesABlockedOneUnlikeAPlainOne) {
  const Layout layout = blocked(32);
  const Layout plain(layout.shape(), DType::f32);
  if (layout.is_plain()) GTEST_SKIP() << "this CPU's convolutions keep plain layouts";
  EXPECT_NE(layout, plain);
  EXPECT_NE(layout.describe(), plain.describe());
  EXPECT_EQ(layout, blocked(32));
  EXPECT_EQ(layout.describe(), blocked(32).describe());
}

TEST(Reorder, RoundTripKeepsEveryElement) {
  for (const std::int64_t channels : {1, 3, 16, 17, 32}) {
    const Layout layout = blocked(channels);
    const Values values = random_values(layout.shape().elements(), "round trip");
    EXPECT_EQ(to_plain(to_memory(values, layout), layout), values) << layout.describe();
  }
}

TEST(Reorder, FillsPaddingWithZeros) {
  const Layout layout = blocked(17);
  Stream stream(Device{}, StreamUse::compute);
  Buffer memory(layout.bytes(), Device{});
  std::memset(memory.data(), 0xff, memory.bytes());
  const Values ones(static_cast<std::size_t>(layout.shape().elements()), 1.0f);
  cpu().reorder(Layout(layout.shape(), DType::f32), layout)->run(stream, ones.data(), memory.data());
  const auto* physical = reinterpret_cast<const float*>(memory.data());
  double sum = 0;
  for (std::int64_t i = 0; i < layout.physical_elements(); ++i) sum += physical[i];
  EXPECT_EQ(sum, static_cast<double>(ones.size()));
}

// Planned kernels are replayed with other addresses: nothing of the first run may stay.
TEST(Reorder, FollowsItsAddresses) {
  const Layout layout = blocked(17);
  const Layout plain(layout.shape(), DType::f32);
  const auto there = cpu().reorder(plain, layout);
  const auto back = cpu().reorder(layout, plain);
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

TEST(Backend, WithoutCudaSaysSo) {
  if (cuda_status().built) GTEST_SKIP() << "this build has CUDA kernels";
  EXPECT_THROW(backend_for({.kind = DeviceKind::cuda, .index = 0}), ConfigError);
}

TEST(Backend, DescribesItself) { EXPECT_NE(cpu().describe().find("oneDNN"), std::string::npos); }

}  // namespace
}  // namespace lockstep
