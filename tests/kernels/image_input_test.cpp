// SPDX-License-Identifier: Apache-2.0
#include <array>

#include <gtest/gtest.h>

#include "kernels/backend.h"
#include "tests/kernels/planned_memory.h"

namespace lockstep {
namespace {

Backend& cpu() { return backend_for(Device{}); }

std::vector<std::uint8_t> every_pixel_different(std::size_t count) {
  std::vector<std::uint8_t> pixels(count);
  for (std::size_t i = 0; i < count; ++i) pixels[i] = static_cast<std::uint8_t>(i * 37 + 11);
  return pixels;
}

TEST(ImageInput, NormalisesEachChannelIntoItsOwnPlane) {
  constexpr std::int64_t batch = 3, height = 4, width = 5, channels = 3;
  const std::array mean{0.1f, 0.5f, 0.9f};
  const std::array deviation{0.25f, 0.5f, 2.0f};
  const auto kernel = cpu().image_input({.batch = batch,
                                         .height = height,
                                         .width = width,
                                         .channels = channels,
                                         .mean = mean,
                                         .deviation = deviation});
  ASSERT_EQ(kernel->output(), Layout({batch, channels, height, width}, DType::f32));
  const auto pixels = every_pixel_different(batch * height * width * channels);
  std::vector<float> output(pixels.size());
  Stream stream(Device{}, StreamUse::compute);
  kernel->run(stream, pixels.data(), output.data());
  for (std::int64_t n = 0; n < batch; ++n) {
    for (std::int64_t p = 0; p < height * width; ++p) {
      for (std::int64_t c = 0; c < channels; ++c) {
        const double pixel = pixels[static_cast<std::size_t>((n * height * width + p) * channels + c)];
        const double expected = (pixel / 255 - mean[c]) / deviation[c];
        EXPECT_NEAR(output[static_cast<std::size_t>((n * channels + c) * height * width + p)], expected,
                    1e-5);
      }
    }
  }
}

TEST(ImageInput, WithoutStatisticsScalesToTheUnitInterval) {
  const auto kernel = cpu().image_input({.batch = 1, .height = 1, .width = 2, .channels = 1});
  const std::vector<std::uint8_t> pixels{0, 255};
  std::vector<float> output(2, -1.0f);
  Stream stream(Device{}, StreamUse::compute);
  kernel->run(stream, pixels.data(), output.data());
  EXPECT_FLOAT_EQ(output[0], 0.0f);
  EXPECT_FLOAT_EQ(output[1], 1.0f);
}

TEST(ImageInput, HalvesAreTheRoundedFloats) {
  const std::array mean{0.1f, 0.5f, 0.9f};
  const std::array deviation{0.25f, 0.5f, 2.0f};
  ImageInput input{.batch = 3, .height = 7, .width = 5, .channels = 3, .mean = mean, .deviation = deviation};
  const auto pixels = every_pixel_different(3 * 7 * 5 * 3);
  const auto run = [&](DType type) {
    input.type = type;
    const auto kernel = cpu().image_input(input);
    EXPECT_EQ(kernel->output(), Layout({3, 3, 7, 5}, type));
    const GuardedMemory output(kernel->output().bytes(), type);
    Stream stream(Device{}, StreamUse::compute);
    kernel->run(stream, pixels.data(), output.data());
    EXPECT_TRUE(output.margin_intact());
    return output.values();
  };
  const Values floats = run(DType::f32);
  for (const DType type : {DType::f16, DType::bf16}) EXPECT_EQ(run(type), rounded(floats, type));
}

TEST(ImageInput, RefusesStatisticsForAnotherNumberOfChannels) {
  const std::array mean{0.5f, 0.5f};
  EXPECT_THROW(cpu().image_input({.batch = 1, .height = 2, .width = 2, .channels = 3, .mean = mean}),
               ConfigError);
}

}  // namespace
}  // namespace lockstep
