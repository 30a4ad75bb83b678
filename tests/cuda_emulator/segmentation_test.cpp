// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/segmentation.h"

#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "tests/cuda_emulator/device_memory.h"

namespace lockstep {
namespace {

// Whole words of 16 bytes and others, and addresses that are not aligned.
TEST(CudaSegmentation, UpsamplingEqualsTheCpu) {
  Stream stream(Device{}, StreamUse::compute);
  Backend& cpu = backend_for(Device{});
  for (const DType type : kElementTypes) {
    for (const UpsamplingShape& size :
         {UpsamplingShape{1, 1, 1, 1, 2}, {2, 3, 4, 5, 2}, {3, 2, 5, 16, 3}, {2, 8, 8, 24, 2}}) {
      for (const std::size_t misaligned : {0, 4}) {
        UpsamplingShape shape = size;
        const auto small = static_cast<std::size_t>(shape.small_elements());
        const auto large = small * static_cast<std::size_t>(shape.factor * shape.factor);
        SCOPED_TRACE(fmt::format("{} elements by {} in {}", small, shape.factor, name_of(type)));
        const Values x = rounded(random_values(static_cast<std::int64_t>(small), "x"), type);
        const Values given = rounded(random_values(static_cast<std::int64_t>(large), "gradient"), type);
        Values y(large), x_gradient(small);
        cpu.upsample_forward(stream, {shape, x.data(), y.data()});
        cpu.upsample_backward(stream, {shape, given.data(), x_gradient.data()});
        const DeviceMemory x_memory(x, type, misaligned), given_memory(given, type),
            y_memory(large * size_of(type), misaligned), result(small * size_of(type));
        shape.type = type;
        EXPECT_EQ(in_any_order([&] {
                    cuda_upsample_forward(stream, {shape, x_memory.data(), y_memory.data()});
                    return y_memory.values(type);
                  }),
                  y);
        expect_near(in_any_order([&] {
                      cuda_upsample_backward(stream, {shape, given_memory.data(), result.data()});
                      return result.values(type);
                    }),
                    widen(x_gradient), 1e-6 + 1.01 * precision_of(type), 1e-6);
      }
    }
  }
}

TEST(CudaSegmentation, ConcatenationEqualsTheCpu) {
  Stream stream(Device{}, StreamUse::compute);
  Backend& cpu = backend_for(Device{});
  for (const DType type : kElementTypes) {
    for (const ConcatenationShape& size : {ConcatenationShape{1, 1, 1}, {7, 3, 5}, {40, 16, 8}, {9, 8, 4}}) {
      ConcatenationShape shape = size;
      const Values a = rounded(random_values(shape.rows * shape.a_elements, "a"), type);
      const Values b = rounded(random_values(shape.rows * shape.b_elements, "b"), type);
      Values joined(a.size() + b.size());
      cpu.concatenate(stream, {shape, a.data(), b.data(), joined.data()});
      shape.type = type;
      const DeviceMemory of_a(a, type), of_b(b, type), result(joined.size() * size_of(type)),
          back_a(a.size() * size_of(type)), back_b(b.size() * size_of(type));
      EXPECT_EQ(in_any_order([&] {
                  cuda_concatenate(stream, {shape, of_a.data(), of_b.data(), result.data()});
                  return result.values(type);
                }),
                joined);
      cuda_separate(stream, {shape, result.data(), back_a.data(), nullptr});
      EXPECT_EQ(back_a.values(type), a);
      cuda_separate(stream, {shape, result.data(), nullptr, back_b.data()});
      EXPECT_EQ(back_b.values(type), b);
    }
  }
}

TEST(CudaSegmentation, PixelTargetsEqualTheCpu) {
  Stream stream(Device{}, StreamUse::compute);
  constexpr std::int64_t kImages = 4, kPixels = 777;
  std::vector<std::uint8_t> masks(kImages * kPixels);
  for (std::size_t i = 0; i < masks.size(); ++i)
    masks[i] = i % 5 == 0 || i / kPixels == 2 ? kIgnoredPixel : static_cast<std::uint8_t>(i % 21);
  const std::vector<float> weights = {1, 0, 1, 1.25f};
  const DeviceMemory mask_memory(masks), weight_memory(weights), labels(masks.size() * sizeof(std::int32_t)),
      pixel_weights(masks.size() * sizeof(float));
  for (const bool share : {true, false}) {
    std::vector<std::int32_t> expected_labels(masks.size());
    Values expected(masks.size());
    PixelTargets targets{.batch = kImages,
                         .pixels = kPixels,
                         .masks = masks.data(),
                         .weights = weights.data(),
                         .share_weight = share,
                         .labels = expected_labels.data(),
                         .pixel_weights = expected.data()};
    backend_for(Device{}).pixel_targets(stream, targets);
    targets.masks = mask_memory.as<std::uint8_t>();
    targets.weights = weight_memory.as<float>();
    targets.labels = labels.as<std::int32_t>();
    targets.pixel_weights = pixel_weights.as<float>();
    EXPECT_EQ(in_any_order([&] {
                cuda_pixel_targets(stream, targets);
                return pixel_weights.values(DType::f32);
              }),
              expected);
    EXPECT_EQ(labels.items<std::int32_t>(), expected_labels);
  }
}

}  // namespace
}  // namespace lockstep
