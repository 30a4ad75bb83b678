// SPDX-License-Identifier: Apache-2.0
#include "data/images/resample.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/data/jpeg_files.h"
#include "tests/data/pillow_resized.h"

namespace lockstep {
namespace {

// The images of pillow_resized.py.
Bytes patterned(const ImageShape& shape) {
  Bytes pixels;
  for (std::int64_t y = 0; y < shape.height; ++y)
    for (std::int64_t x = 0; x < shape.width; ++x)
      for (std::int64_t c = 0; c < shape.channels; ++c)
        pixels.push_back(
            static_cast<std::uint8_t>(7 * x + 13 * y + 50 * c + 5 * (x * y % 31) + 37 * (x ^ y)));
  return pixels;
}

Bytes resized(const ImageView& image, const ImageBox& box, const ImageShape& shape) {
  Bytes pixels(static_cast<std::size_t>(shape.bytes()));
  resample(image, box, shape, pixels);
  return pixels;
}

TEST(Resample, EqualsPillow) {
  for (const PillowCase& expected : kPillowCases) {
    const Bytes image = patterned(expected.image);
    const Bytes found = resized(ImageView::of(image, expected.image), expected.box, expected.resized);
    ASSERT_EQ(std::string(expected.hex).size(), 2 * found.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      const int wanted = std::stoi(std::string(expected.hex + 2 * i, 2), nullptr, 16);
      ASSERT_EQ(int{found[i]}, wanted)
          << "byte " << i << " of " << expected.resized.height << " x " << expected.resized.width;
    }
  }
}

TEST(Resample, TheSameSizeKeepsTheImage) {
  const Bytes image = noise(kColour, 1);
  EXPECT_EQ(resized(ImageView::of(image, kColour), {0, 0, 8, 12}, kColour), image);
}

TEST(Resample, APartEqualsTheCroppedImage) {
  const Bytes image = noise(kColour, 2);
  Bytes cut;
  for (std::size_t y = 2; y < 7; ++y)
    cut.insert(cut.end(), image.begin() + static_cast<long>(3 * (12 * y + 1)),
               image.begin() + static_cast<long>(3 * (12 * y + 9)));
  const ImageShape part{.height = 5, .width = 8, .channels = 3}, to{.height = 3, .width = 11, .channels = 3};
  EXPECT_EQ(resized(ImageView::of(image, kColour).part(2, 1, 5, 8), {0, 0, 5, 8}, to),
            resized(ImageView::of(cut, part), {0, 0, 5, 8}, to));
}

TEST(Resample, SupportsAnyNumberOfChannels) {
  const ImageShape two{.height = 6, .width = 5, .channels = 2}, one{.height = 6, .width = 5, .channels = 1};
  const Bytes image = noise(two, 3);
  const Bytes both = resized(ImageView::of(image, two), {0, 0, 6, 5}, {4, 3, 2});
  for (std::size_t channel = 0; channel < 2; ++channel) {
    Bytes plane, expected;
    for (std::size_t i = channel; i < image.size(); i += 2) plane.push_back(image[i]);
    for (std::size_t i = channel; i < both.size(); i += 2) expected.push_back(both[i]);
    EXPECT_EQ(resized(ImageView::of(plane, one), {0, 0, 6, 5}, {4, 3, 1}), expected);
  }
}

}  // namespace
}  // namespace lockstep
