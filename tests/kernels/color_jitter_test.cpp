// SPDX-License-Identifier: Apache-2.0
#include "kernels/color_jitter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "core/error.h"
#include "kernels/backend.h"
#include "kernels/color_jitter_functors.h"
#include "tests/kernels/planned_memory.h"

namespace lockstep {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Rgb = std::array<double, 3>;

constexpr std::int64_t kColorHeight = 6, kColorWidth = 9, kColorPixels = kColorHeight * kColorWidth;

// Grays, pure colours and mixtures.
Bytes colorful(std::int64_t images, std::int64_t channels) {
  Bytes bytes;
  for (std::int64_t i = 0; i < images * kColorPixels * channels; ++i)
    bytes.push_back(static_cast<std::uint8_t>(i % 11 == 0 ? 255 : i % 7 == 0 ? 0 : i * i % 253));
  for (std::size_t i = 0; i + 2 < 12 * static_cast<std::size_t>(channels); i += 5)
    bytes[i + 1] = bytes[i + 2] = bytes[i];
  return bytes;
}

std::vector<SampleId> samples_of_epoch(std::int64_t count, std::int32_t epoch) {
  std::vector<SampleId> samples;
  for (std::int32_t i = 0; i < count; ++i) samples.push_back({.epoch = epoch, .index = 3 * i + 1});
  return samples;
}

Bytes jittered(const ColorJitter& how, const Bytes& images, const std::vector<SampleId>& samples,
               std::int64_t channels = 3, PhiloxKey key = {5, 6}) {
  Stream stream(Device{}, StreamUse::compute);
  Bytes output(images.size());
  cpu_backend().color_jitter(stream, {.batch = std::ssize(samples),
                                      .height = kColorHeight,
                                      .width = kColorWidth,
                                      .channels = channels,
                                      .how = how,
                                      .key = key,
                                      .images = images.data(),
                                      .samples = samples.data(),
                                      .output = output.data()});
  return output;
}

// The definitions of torchvision's functional interface (adjust_brightness and so on).
double gray_of(const Rgb& p) { return 0.2989 * p[0] + 0.587 * p[1] + 0.114 * p[2]; }

Rgb blend(const Rgb& p, double other, double factor) {
  Rgb blended;
  for (std::size_t c = 0; c < 3; ++c)
    blended[c] = std::clamp(factor * p[c] + (1 - factor) * other, 0.0, 255.0);
  return blended;
}

// Rotates the hue by this share of a full turn, through hue in degrees, saturation and value.
Rgb turn(const Rgb& p, double share) {
  const double value = std::max({p[0], p[1], p[2]}), chroma = value - std::min({p[0], p[1], p[2]});
  if (chroma == 0) return p;
  double degrees = value == p[0]   ? 60 * std::fmod((p[1] - p[2]) / chroma + 6, 6)
                   : value == p[1] ? 60 * ((p[2] - p[0]) / chroma + 2)
                                   : 60 * ((p[0] - p[1]) / chroma + 4);
  degrees = std::fmod(degrees + 360 * share + 360, 360);
  const auto channel = [&](double n) {  // the formula without case distinctions
    const double k = std::fmod(n + degrees / 60, 6);
    return value - chroma * std::max(0.0, std::min({k, 4 - k, 1.0}));
  };
  return {channel(5), channel(3), channel(1)};
}

std::vector<Rgb> expected_of(const Bytes& image, const Jitter::View& view, const ColorJitter& how) {
  std::vector<Rgb> pixels;
  for (std::size_t i = 0; i < image.size(); i += 3)
    pixels.push_back({static_cast<double>(image[i]), static_cast<double>(image[i + 1]),
                      static_cast<double>(image[i + 2])});
  for (int place = 0; place < Jitter::kOperations; ++place) {
    const Jitter::Operation operation = view.operation(place);
    const auto amount = static_cast<double>(view.amounts.of(operation));
    double mean = 0;
    for (const Rgb& pixel : pixels) mean += gray_of(pixel) / static_cast<double>(pixels.size());
    for (Rgb& pixel : pixels) {
      if (operation == Jitter::kBrightness && how.brightness > 0) pixel = blend(pixel, 0, amount);
      if (operation == Jitter::kContrast && how.contrast > 0) pixel = blend(pixel, mean, amount);
      if (operation == Jitter::kSaturation && how.saturation > 0)
        pixel = blend(pixel, gray_of(pixel), amount);
      if (operation == Jitter::kHue && how.hue > 0) pixel = turn(pixel, amount);
    }
  }
  return pixels;
}

TEST(ColorJitter, MatchesTorchvisionWithinOneLevel) {
  constexpr std::int64_t kImages = 60;
  const Bytes images = colorful(kImages, 3);
  const auto samples = samples_of_epoch(kImages, 2);
  const ColorJitter cases[] = {{.brightness = 0.5},
                               {.contrast = 0.7},
                               {.saturation = 1.5},
                               {.hue = 0.5},
                               {.hue = 0.1},
                               {.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1},
                               {.brightness = 3, .contrast = 2, .saturation = 5, .hue = 0.5}};
  for (const ColorJitter& how : cases) {
    const Bytes output = jittered(how, images, samples);
    const Jitter jitter = Jitter::from({.channels = 3, .how = how, .key = {5, 6}});
    double far = 0;
    for (std::int64_t image = 0; image < kImages; ++image) {
      const auto begin = images.begin() + image * kColorPixels * 3;
      const std::vector<Rgb> expected = expected_of(
          Bytes(begin, begin + kColorPixels * 3), jitter.view(samples[static_cast<std::size_t>(image)]), how);
      for (std::int64_t i = 0; i < kColorPixels * 3; ++i) {
        const double wanted = expected[static_cast<std::size_t>(i / 3)][static_cast<std::size_t>(i % 3)];
        const double got = output[static_cast<std::size_t>(image * kColorPixels * 3 + i)];
        ASSERT_NEAR(got, wanted, 0.56) << "image " << image << " at " << i;
        far =
            std::max(far, std::abs(wanted - images[static_cast<std::size_t>(image * kColorPixels * 3 + i)]));
      }
    }
    EXPECT_GT(far, 10) << "the images must change";
  }
}

// The ends of the ranges occur, means are in the middle, and all orders are equally likely.
TEST(ColorJitter, DrawsFactorsAndOrdersUniformly) {
  constexpr int kDraws = 24 * 200;
  const Jitter jitter =
      Jitter::from({.channels = 3,
                    .how = {.brightness = 0.4, .contrast = 1.5, .saturation = 0.2, .hue = 0.1},
                    .key = {1, 2}});
  const double low[] = {0.6, 0, 0.8, -0.1}, high[] = {1.4, 2.5, 1.2, 0.1};
  double sum[4] = {}, least[4] = {9, 9, 9, 9}, most[4] = {-9, -9, -9, -9};
  std::map<std::vector<int>, int> orders;
  for (std::int32_t i = 0; i < kDraws; ++i) {
    const Jitter::View view = jitter.view({.epoch = 0, .index = i});
    for (int k = 0; k < 4; ++k) {
      const auto amount = static_cast<double>(view.amounts.of(static_cast<Jitter::Operation>(k)));
      sum[k] += amount / kDraws;
      least[k] = std::min(least[k], amount);
      most[k] = std::max(most[k], amount);
    }
    ++orders[{view.operation(0), view.operation(1), view.operation(2), view.operation(3)}];
  }
  for (int k = 0; k < 4; ++k) {
    const double width = high[k] - low[k];
    EXPECT_GE(least[k], low[k] - 1e-6);
    EXPECT_LE(least[k], low[k] + 0.01 * width);
    EXPECT_LE(most[k], high[k] + 1e-6);
    EXPECT_GE(most[k], high[k] - 0.01 * width);
    EXPECT_NEAR(sum[k], (low[k] + high[k]) / 2, 0.02 * width);
  }
  ASSERT_EQ(orders.size(), 24u);
  for (const auto& [order, count] : orders) {
    EXPECT_EQ(std::set<int>(order.begin(), order.end()).size(), 4u);
    EXPECT_NEAR(count, 200, 70);
  }
}

TEST(ColorJitter, DependsOnKeyEpochAndSampleAlone) {
  const ColorJitter how{.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1};
  const Bytes one = colorful(1, 3);
  Bytes four;
  for (int i = 0; i < 4; ++i) four.insert(four.end(), one.begin(), one.end());
  const std::vector<SampleId> samples = {
      {.epoch = 1, .index = 7}, {.epoch = 1, .index = 8}, {.epoch = 2, .index = 7}, {.epoch = 1, .index = 7}};
  const Bytes output = jittered(how, four, samples);
  const auto image = [&](std::size_t i) {
    return Bytes(output.begin() + static_cast<std::ptrdiff_t>(i * one.size()),
                 output.begin() + static_cast<std::ptrdiff_t>((i + 1) * one.size()));
  };
  EXPECT_EQ(image(0), image(3));
  EXPECT_NE(image(0), image(1));
  EXPECT_NE(image(0), image(2));
  EXPECT_EQ(jittered(how, one, {samples[1]}), image(1));
  EXPECT_NE(jittered(how, one, {samples[1]}, 3, {5, 7}), image(1));
}

TEST(ColorJitter, GrayImagesIgnoreSaturationAndHue) {
  const Bytes images = colorful(20, 1);
  const auto samples = samples_of_epoch(20, 0);
  EXPECT_EQ(jittered({.saturation = 1, .hue = 0.5}, images, samples, 1), images);
  const ColorJitter how{.brightness = 0.3, .contrast = 0.5};
  const Bytes gray = jittered(how, images, samples, 1);
  EXPECT_NE(gray, images);
  Bytes as_rgb;
  for (const std::uint8_t byte : images) as_rgb.insert(as_rgb.end(), 3, byte);
  const Bytes rgb = jittered(how, as_rgb, samples);
  for (std::size_t i = 0; i < images.size(); ++i) EXPECT_NEAR(rgb[3 * i], gray[i], 1);
}

TEST(ColorJitter, RefusesInvalidOptions) {
  const Bytes two = colorful(1, 2);
  const auto samples = samples_of_epoch(1, 0);
  EXPECT_THROW(jittered({.brightness = 0.5}, two, samples, 2), ConfigError);
  const Bytes images = colorful(1, 3);
  EXPECT_THROW(jittered({.hue = 0.6}, images, samples), ConfigError);
  EXPECT_THROW(jittered({.brightness = 0.1, .contrast = -1}, images, samples), ConfigError);
  EXPECT_THROW(jittered({.contrast = -1}, images, samples), ConfigError);
}

}  // namespace
}  // namespace lockstep
