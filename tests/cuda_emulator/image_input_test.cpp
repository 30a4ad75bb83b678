// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/image_input.h"

#include <span>

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/cuda_emulator/device_memory.h"

namespace lockstep {
namespace {

constexpr float kMean[] = {0.1f, 0.5f, 0.9f, 0.3f};
constexpr float kDeviation[] = {0.25f, 0.5f, 2.0f, 1.0f};

std::vector<std::uint8_t> some_images(std::int64_t bytes) {
  std::vector<std::uint8_t> images(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < images.size(); ++i) images[i] = static_cast<std::uint8_t>(i * 37 + 11);
  return images;
}

std::vector<SampleId> some_samples_of(std::int32_t batch) {
  std::vector<SampleId> samples;
  for (std::int32_t i = 0; i < batch; ++i) samples.push_back({.epoch = 2, .index = 1000 - i * i});
  return samples;
}

TEST(CudaImageInput, EqualsTheCpuWithChannelsLastAndPadded) {
  Stream stream(Device{}, StreamUse::compute);
  for (const DType type : kElementTypes) {
    for (const std::int64_t channels : {1, 2, 3, 4}) {
      for (const auto& [batch, height, width] :
           {std::tuple{1, 1, 1}, {1, 2, 2}, {3, 5, 7}, {2, 28, 28}, {1, 33, 65}}) {
        const std::int64_t pixels = batch * height * width;
        SCOPED_TRACE(fmt::format("{} pixels of {} channels in {}", pixels, channels, name_of(type)));
        const std::vector<std::uint8_t> images = some_images(pixels * channels);
        const auto count = static_cast<std::size_t>(channels);
        const ImageInput input{.batch = batch,
                               .height = height,
                               .width = width,
                               .channels = channels,
                               .mean = std::span(kMean).first(count),
                               .deviation = std::span(kDeviation).first(count)};
        Values planes(images.size());
        backend_for(Device{}).image_input(input)->run(stream, images.data(), planes.data());
        ImageInput of_type = input;
        of_type.type = type;
        const CudaImageInput planned = CudaImageInput::from(of_type);
        const std::int64_t padded = padded_channels(channels, type);
        Values expected(static_cast<std::size_t>(pixels * padded), 0.0f);
        const std::int64_t plane = std::int64_t{height} * width;
        for (std::int64_t i = 0; i < pixels; ++i) {
          for (std::int64_t c = 0; c < channels; ++c) {
            expected[static_cast<std::size_t>(i * padded + c)] = rounded(
                planes[static_cast<std::size_t>((i / plane * channels + c) * plane + i % plane)], type);
          }
        }
        for (const std::size_t misaligned : {std::size_t{0}, size_of(type)}) {
          const DeviceMemory bytes(images), output(expected.size() * size_of(type), misaligned);
          EXPECT_EQ(in_any_order([&] {
                      cuda_image_input(stream, planned, bytes.as<const std::uint8_t>(), output.data(),
                                       nullptr);
                      return output.values(type);
                    }),
                    expected);
        }
      }
    }
  }
}

TEST(CudaImageInput, NumbersAreOnlyConvertedToTheType) {
  Stream stream(Device{}, StreamUse::compute);
  for (const DType type : kElementTypes) {
    for (const std::int64_t width : {1, 4, 33, 1000}) {
      const Values numbers = random_values(3 * width, "numbers");
      const CudaImageInput planned = CudaImageInput::from(
          {.batch = 3, .height = 1, .width = width, .channels = 1, .source = DType::f32, .type = type});
      const std::int64_t padded = padded_channels(1, type);
      Values expected(static_cast<std::size_t>(3 * width * padded), 0.0f);
      for (std::size_t i = 0; i < numbers.size(); ++i)
        expected[i * static_cast<std::size_t>(padded)] = rounded(numbers[i], type);
      const DeviceMemory from(numbers, DType::f32), output(expected.size() * size_of(type));
      EXPECT_EQ(in_any_order([&] {
                  cuda_image_input(stream, planned, from.data(), output.data(), nullptr);
                  return output.values(type);
                }),
                expected);
    }
  }
}

TEST(CudaImageInput, AugmentationEqualsTheCpu) {
  Stream stream(Device{}, StreamUse::compute);
  for (const DType type : kElementTypes) {
    for (const std::int64_t channels : {1, 3, 4}) {
      for (const auto& [height, width] : {std::pair{1, 1}, {5, 7}, {32, 32}}) {
        constexpr std::int64_t kBatch = 9;
        SCOPED_TRACE(fmt::format("{}x{} of {} channels in {}", height, width, channels, name_of(type)));
        const std::int64_t pixels = std::int64_t{height} * width;
        const std::vector<std::uint8_t> images = some_images(kBatch * pixels * channels);
        const std::vector<SampleId> samples = some_samples_of(kBatch);
        const ImageInput input{.batch = kBatch,
                               .height = height,
                               .width = width,
                               .channels = channels,
                               .mean = std::span(kMean).first(static_cast<std::size_t>(channels)),
                               .deviation = {},
                               .type = type,
                               .augmentation = {.crop_padding = height > 4 ? 4 : 1,
                                                .horizontal_flip = true,
                                                .cutout = height / 4,
                                                .random_erasing = 0.75,
                                                .key = {3, 5}}};
        ImageInput in_floats = input;
        in_floats.type = DType::f32;
        Values planes(images.size());
        backend_for(Device{}).image_input(in_floats)->run(stream, images.data(), planes.data(),
                                                          samples.data());
        const std::int64_t padded = padded_channels(channels, type);
        Values expected(static_cast<std::size_t>(kBatch * pixels * padded), 0.0f);
        for (std::int64_t i = 0; i < kBatch * pixels; ++i) {
          for (std::int64_t c = 0; c < channels; ++c) {
            const auto place = static_cast<std::size_t>((i / pixels * channels + c) * pixels + i % pixels);
            expected[static_cast<std::size_t>(i * padded + c)] = rounded(planes[place], type);
          }
        }
        const DeviceMemory ids(samples), bytes(images);
        for (const std::size_t misaligned : {std::size_t{0}, size_of(type)}) {
          const DeviceMemory output(expected.size() * size_of(type), misaligned);
          EXPECT_EQ(in_any_order([&] {
                      cuda_image_input(stream, CudaImageInput::from(input), bytes.as<const std::uint8_t>(),
                                       output.data(), ids.as<const SampleId>());
                      return output.values(type);
                    }),
                    expected);
        }
      }
    }
  }
}

// The compiler decides whether a product and a sum are rounded once or twice.
TEST(CudaImageInput, MixingMatchesTheCpu) {
  Stream stream(Device{}, StreamUse::compute);
  for (const auto& [mixup, cutmix] : {std::pair{0.4, 0.0}, {0.0, 1.0}, {1.0, 1.0}}) {
    for (const std::int64_t channels : {1, 3, 4}) {
      constexpr std::int64_t kBatch = 9, kHeight = 5, kWidth = 7, kPixels = kHeight * kWidth;
      SCOPED_TRACE(fmt::format("mixup {}, cutmix {}, {} channels", mixup, cutmix, channels));
      const std::vector<std::uint8_t> images = some_images(kBatch * kPixels * channels);
      const std::vector<SampleId> samples = some_samples_of(kBatch);
      Values weights(kBatch, 1.0f), shares(kBatch);
      weights[3] = 0;
      const ImageInput input{.batch = kBatch,
                             .height = kHeight,
                             .width = kWidth,
                             .channels = channels,
                             .mean = std::span(kMean).first(static_cast<std::size_t>(channels)),
                             .deviation = {},
                             .augmentation = {.crop_padding = 1,
                                              .horizontal_flip = true,
                                              .cutout = 2,
                                              .mixup = mixup,
                                              .cutmix = cutmix,
                                              .key = {3, 5}}};
      Values planes(images.size());
      backend_for(Device{}).image_input(input)->run(stream, images.data(), planes.data(), samples.data(),
                                                    {.weights = weights.data(), .shares = shares.data()});
      const std::int64_t padded = padded_channels(channels, DType::f32);
      const DeviceMemory ids(samples), bytes(images), weight(weights, DType::f32),
          share(kBatch * sizeof(float)),
          output(static_cast<std::size_t>(kBatch * kPixels * padded) * sizeof(float));
      const Values found = in_any_order([&] {
        cuda_image_input(stream, CudaImageInput::from(input), bytes.as<const std::uint8_t>(), output.data(),
                         ids.as<const SampleId>(),
                         {.weights = weight.as<const float>(), .shares = share.as<float>()});
        return output.values(DType::f32);
      });
      EXPECT_EQ(share.values(DType::f32), shares);
      EXPECT_LT(std::ranges::min(shares), 1.0f);
      for (std::int64_t i = 0; i < kBatch * kPixels; ++i) {
        for (std::int64_t c = 0; c < padded; ++c) {
          const float expected =
              c < channels
                  ? planes[static_cast<std::size_t>((i / kPixels * channels + c) * kPixels + i % kPixels)]
                  : 0.0f;
          ASSERT_NEAR(found[static_cast<std::size_t>(i * padded + c)], expected, 1e-6f) << i << ", " << c;
        }
      }
    }
  }
}

TEST(CudaImageInput, WithoutStatisticsScalesToTheUnitInterval) {
  Stream stream(Device{}, StreamUse::compute);
  const DeviceMemory images(std::vector<std::uint8_t>{0, 255}), output(2 * sizeof(float));
  cuda_image_input(stream, CudaImageInput::from({.batch = 1, .height = 1, .width = 2, .channels = 1}),
                   images.as<const std::uint8_t>(), output.data(), nullptr);
  EXPECT_FLOAT_EQ(output.as<float>()[0], 0.0f);
  EXPECT_FLOAT_EQ(output.as<float>()[1], 1.0f);
}

TEST(CudaImageInput, RefusesInvalidShapes) {
  EXPECT_THROW(CudaImageInput::from({.batch = 1, .height = 2, .width = 2, .channels = 5}), ConfigError);
  EXPECT_THROW(CudaImageInput::from({.batch = 1, .height = 2, .width = 2, .channels = 0}), ConfigError);
  EXPECT_THROW(CudaImageInput::from({.batch = 1, .height = 2, .width = 2, .channels = 3, .mean = kMean}),
               ConfigError);
  EXPECT_NO_THROW(CudaImageInput::from({.batch = 1, .height = 2, .width = 2, .channels = 4, .mean = kMean}));
}

}  // namespace
}  // namespace lockstep
