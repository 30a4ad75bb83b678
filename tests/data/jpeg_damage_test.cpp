// SPDX-License-Identifier: Apache-2.0
//
// Unusual or damaged JPEG files that can be decoded.
#include <algorithm>
#include <memory>
#include <random>

#include <gtest/gtest.h>

#include "core/error.h"
#include "data/formats/image_folder.h"
#include "tests/data/jpeg_files.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

// A JPEG file with inks as Adobe's programs store them: 255 means no ink.
Bytes ycck(const Bytes& inks) {
  Bytes pixels;
  for (int i = 0; i < 8 * 12; ++i) pixels.insert(pixels.end(), inks.begin(), inks.end());
  return encode(kColour, pixels, {.format = TJPF_CMYK, .subsampling = TJSAMP_444});
}

// The same data, declared as plain CMYK.
Bytes as_cmyk(Bytes jpeg) {
  const Bytes adobe = {'A', 'd', 'o', 'b', 'e'};
  const auto marker = std::search(jpeg.begin(), jpeg.end(), adobe.begin(), adobe.end());
  CHECK(marker != jpeg.end());
  marker[11] = 0;  // the transform; 2 was YCCK
  return jpeg;
}

void expect_colour(const Bytes& image, const Bytes& colour) {
  for (std::size_t i = 0; i < image.size(); ++i) {
    ASSERT_NEAR(image[i], colour[i % colour.size()], 3) << "byte " << i;
  }
}

TEST(JpegDamage, CmykIsConvertedToRgb) {
  const TemporaryFolder folder;
  folder.write("train/a/0.jpg", flat_jpeg({10, 20, 30}));
  folder.write("train/a/1.jpg", ycck({255, 255, 255, 255}));  // no ink: white
  folder.write("train/a/2.jpg", ycck({255, 0, 0, 255}));      // magenta and yellow: red
  folder.write("train/a/3.jpg", ycck({0, 255, 255, 128}));    // cyan, half black
  folder.write("train/a/4.jpg", ycck({80, 80, 80, 200}));
  folder.write("train/a/5.jpg", as_cmyk(ycck({100, 100, 100, 153})));  // its planes are 155, 128, 128, 153
  const std::unique_ptr<Dataset> dataset = open_image_folder({.path = folder.path()}, Split::train);
  ASSERT_EQ(dataset->image_shape(), kColour);
  expect_colour(read(*dataset, 1), {255, 255, 255});
  expect_colour(read(*dataset, 2), {255, 0, 0});
  expect_colour(read(*dataset, 3), {0, 128, 128});
  expect_colour(read(*dataset, 4), {63, 63, 63});  // 80 * 200 / 255
  expect_colour(read(*dataset, 5), {93, 77, 77});
  expect_colour(read(*dataset, 0), {10, 20, 30});
  EXPECT_EQ(dataset->damaged(), 0);
}

TEST(JpegDamage, CmykIsConvertedToGrayInAGrayDataset) {
  const TemporaryFolder folder;
  folder.write("train/a/0.jpg", flat_jpeg({7}));
  folder.write("train/a/1.jpg", ycck({255, 0, 0, 255}));
  folder.write("train/a/2.jpg", ycck({255, 255, 255, 99}));
  const std::unique_ptr<Dataset> dataset =
      open_image_folder({.path = folder.path(), .images = {.channels = 1}}, Split::train);
  ASSERT_EQ(dataset->image_shape(), kGray);
  expect_colour(read(*dataset, 1), {76});  // 0.299 * 255
  expect_colour(read(*dataset, 2), {99});
}

TEST(JpegDamage, AFolderMayBeginWithACmykImage) {
  const TemporaryFolder folder;
  folder.write("train/a/0.jpg", ycck({255, 255, 255, 50}));
  const std::unique_ptr<Dataset> dataset = open_image_folder({.path = folder.path()}, Split::train);
  EXPECT_EQ(dataset->image_shape(), kColour);
  expect_colour(read(*dataset, 0), {50, 50, 50});
}

// Cameras and editors leave stray bytes before the end of an image. Decoders warn and continue.
TEST(JpegDamage, WarningsOfTheDecoderAreNoErrors) {
  const TemporaryFolder folder;
  const Bytes sound = encode(kColour, noise(kColour, 1));
  Bytes stray = sound;
  stray.insert(stray.end() - 2, 20, 1);
  folder.write("train/a/0.jpg", sound);
  folder.write("train/a/1.jpg", stray);
  const std::unique_ptr<Dataset> dataset = open_image_folder({.path = folder.path()}, Split::train);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(read(*dataset, 1), read(*dataset, 0));
    EXPECT_EQ(dataset->damaged(), 1) << "counted once";
  }
  const std::string log = testing::internal::GetCapturedStderr();
  expect_parts(log, {"warning", (folder.path() / "train/a/1.jpg").string(),
                     "extraneous bytes before marker 0xd9"});  // a text of libjpeg
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
}

TEST(JpegDamage, ATruncatedImageIsDecodedUpToItsEnd) {
  const TemporaryFolder folder;
  constexpr ImageShape kTall{.height = 64, .width = 12, .channels = 3};
  const Bytes sound = encode(kTall, noise(kTall, 1));
  folder.write("train/a/0.jpg", sound);
  folder.write("train/a/1.jpg",
               {sound.begin(), sound.begin() + static_cast<std::ptrdiff_t>(sound.size() * 3 / 4)});
  const std::unique_ptr<Dataset> dataset = open_image_folder({.path = folder.path()}, Split::train);
  const Bytes whole = read(*dataset, 0);
  const Bytes part = read(*dataset, 1);
  EXPECT_TRUE(std::equal(part.begin(), part.begin() + 16 * 12 * 3, whole.begin()))
      << "the upper rows must be intact";
  EXPECT_NE(part, whole);
  EXPECT_EQ(dataset->damaged(), 1);
}

TEST(JpegDamage, EveryTruncationIsRefusedOrCounted) {
  const TemporaryFolder folder;
  folder.write("train/a/1.jpg", flat_jpeg({10, 20, 30}));
  int decoded = 0;
  for (const int flags : {0, TJFLAG_PROGRESSIVE}) {
    const Bytes whole = encode(kColour, noise(kColour, 1), {.flags = flags});
    for (std::size_t length = 0; length <= whole.size(); ++length) {
      folder.remove("train/a/2.jpg");  // ext4 writes a file to the disk if it is overwritten
      folder.write("train/a/2.jpg", {whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)});
      const std::unique_ptr<Dataset> dataset = open_image_folder({.path = folder.path()}, Split::train);
      testing::internal::CaptureStderr();
      const std::string error = message_of<DataError>([&] { read(*dataset, 1); });
      const std::string log = testing::internal::GetCapturedStderr();
      if (!error.empty()) expect_parts(error, {(folder.path() / "train/a/2.jpg").string()});
      EXPECT_EQ(dataset->damaged(), error.empty() && length < whole.size() ? 1 : 0) << length;
      EXPECT_EQ(log.empty(), dataset->damaged() == 0) << log;
      decoded += error.empty() ? 1 : 0;
    }
  }
  EXPECT_GT(decoded, 100);
}

// Removes the header segments that begin with this marker.
Bytes without_segments(const Bytes& jpeg, std::uint8_t marker) {
  constexpr std::uint8_t kStartOfScan = 0xda;
  Bytes rest(jpeg.begin(), jpeg.begin() + 2);
  for (std::size_t at = 2; at + 4 <= jpeg.size();) {
    const std::uint8_t found = jpeg[at + 1];
    const std::size_t end = found == kStartOfScan ? jpeg.size() : at + 2 + (jpeg[at + 2] << 8 | jpeg[at + 3]);
    if (found != marker)
      rest.insert(rest.end(), jpeg.begin() + static_cast<long>(at), jpeg.begin() + static_cast<long>(end));
    at = end;
  }
  return rest;
}

TEST(JpegDamage, AnImageWithoutTablesUsesNoneOfThePreviousImage) {
  constexpr std::uint8_t kQuantization = 0xdb;
  const TemporaryFolder folder;
  const Bytes sound = encode(kColour, noise(kColour, 2));
  const Bytes without = without_segments(sound, kQuantization);
  ASSERT_LT(without.size(), sound.size());
  folder.write("train/a/1.jpg", sound);
  folder.write("train/a/2.jpg", without);
  const std::unique_ptr<Dataset> dataset = open_image_folder({.path = folder.path()}, Split::train);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(read(*dataset, 0), decode(sound, kColour));
    expect_parts(message_of<DataError>([&] { read(*dataset, 1); }), {"train/a/2.jpg", "uantization table"});
  }
}

TEST(JpegDamage, RandomDamageDoesNotAffectAnotherImage) {
  const TemporaryFolder folder;
  const Bytes sound = encode(kColour, noise(kColour, 2));
  const Bytes progressive = encode(kColour, noise(kColour, 2), {.flags = TJFLAG_PROGRESSIVE});
  const Bytes cmyk = ycck({1, 2, 3, 4});
  const Bytes expected = decode(sound, kColour);
  folder.write("train/a/1.jpg", sound);
  folder.write("train/a/2.jpg", sound);
  const std::unique_ptr<Dataset> dataset = open_image_folder({.path = folder.path()}, Split::train);
  std::mt19937 random(3);
  int refused = 0;
  testing::internal::CaptureStderr();
  for (int round = 0; round < 3'000; ++round) {
    Bytes broken = round % 3 == 0 ? sound : round % 3 == 1 ? progressive : cmyk;
    for (int flip = 0; flip <= round % 4; ++flip) {
      broken[random() % broken.size()] = static_cast<std::uint8_t>(random());
    }
    folder.remove("train/a/2.jpg");  // ext4 writes a file to the disk if it is overwritten
    folder.write("train/a/2.jpg", broken);
    try {
      read(*dataset, 1);
    } catch (const DataError& error) {
      ++refused;
      expect_parts(error.what(), {"train/a/2.jpg"});
    }
    ASSERT_EQ(read(*dataset, 0), expected) << "after round " << round;  // unaffected by the error
  }
  testing::internal::GetCapturedStderr();
  EXPECT_GT(refused, 100);
  EXPECT_LT(refused, 3'000);
  EXPECT_EQ(dataset->damaged(), 1) << "a file must count once, even if it was damaged several times";
}

}  // namespace
}  // namespace lockstep
