// SPDX-License-Identifier: Apache-2.0
#include "data/images/orientation.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "data/formats/image_folder.h"
#include "data/images/image_decoder.h"
#include "data/images/png.h"
#include "tests/data/images/png_chunks.h"
#include "tests/data/jpeg_files.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

// The stored image is "ab/cd/ef". The expected images follow the figure of the Exif standard.
TEST(Orientation, RotatesAndMirrorsAsInTheExifStandard) {
  const Bytes stored = {'a', 'b', 'c', 'd', 'e', 'f'};
  const ImageShape shape{.height = 3, .width = 2, .channels = 1};
  constexpr std::string_view kShown[] = {"abcdef", "badcfe", "fedcba", "efcdab",
                                         "acebdf", "ecafdb", "fdbeca", "bdface"};
  for (int orientation = 1; orientation <= 8; ++orientation) {
    Bytes shown(stored.size());
    turn(stored, shape, orientation, shown);
    EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(shown.data()), shown.size()),
              kShown[orientation - 1])
        << orientation;
  }
}

TEST(Orientation, IsReadInBothByteOrdersAndOnlyIfValid) {
  const Bytes plain = flat_jpeg({1, 2, 3});
  EXPECT_EQ(exif_orientation(plain), 1);
  for (const bool little : {false, true}) {
    for (int orientation = 1; orientation <= 8; ++orientation)
      EXPECT_EQ(exif_orientation(with_exif(plain, orientation, little)), orientation);
    EXPECT_EQ(exif_orientation(with_exif(plain, 0, little)), 1);
    EXPECT_EQ(exif_orientation(with_exif(plain, 9, little)), 1);
  }
  const Bytes whole = with_exif(plain, 6);
  for (const std::size_t fill_bytes : {1, 2, 3}) {
    Bytes filled = whole;
    filled.insert(filled.begin() + 2, fill_bytes, std::uint8_t{0xff});
    EXPECT_EQ(exif_orientation(filled), 6) << fill_bytes;
  }
  for (std::size_t length = 0; length < 60; ++length) {
    const int found = exif_orientation(std::span(whole).first(length));
    EXPECT_TRUE(found == 1 || found == 6) << length;
  }
  EXPECT_EQ(exif_orientation({}), 1);
}

// As stored: upper half white, lower half black. Turned right (6), the top becomes the right side.
Bytes halves(const ImageShape& shape) {
  Bytes pixels(static_cast<std::size_t>(shape.bytes()));
  std::fill_n(pixels.begin(), pixels.size() / 2, std::uint8_t{255});
  return pixels;
}

TEST(Orientation, ImagesAreReadUpright) {
  const ImageShape stored{.height = 32, .width = 48, .channels = 3};
  const TemporaryFolder folder;
  folder.write("train/a/1.jpg", with_exif(encode(stored, halves(stored)), 6));
  DatasetOptions options{.path = folder.path()};
  testing::internal::CaptureStderr();
  const auto shown = open_image_folder(options, Split::train);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("data.exif_orientation"), std::string::npos);
  ASSERT_EQ(shown->image_shape(), (ImageShape{.height = 48, .width = 32, .channels = 3}));
  const Bytes pixels = read(*shown, 0);
  const auto red = [&](std::int64_t row, std::int64_t column) {
    return pixels[static_cast<std::size_t>((row * 32 + column) * 3)];
  };
  for (const std::int64_t row : {0, 24, 47}) {
    EXPECT_LT(red(row, 2), 20) << row;
    EXPECT_GT(red(row, 29), 235) << row;
  }
  options.images.exif_orientation = ExifOrientation::ignore;
  EXPECT_EQ(open_image_folder(options, Split::train)->image_shape(), stored);
}

// Decoding at reduced size equals the reduction of the full image, turned, also for sides that leave partial
// pixels.
TEST(Orientation, IsAppliedToReducedImages) {
  for (const ImageShape& stored : {ImageShape{.height = 256, .width = 384, .channels = 3},
                                   ImageShape{.height = 251, .width = 379, .channels = 3}}) {
    const Bytes jpeg = with_exif(encode(stored, halves(stored)), 8);  // the top becomes the left side
    ImageDecoder& decoder = ImageDecoder::of_this_thread();
    const ImageShape whole = decoder.open("x.jpg", jpeg, ExifOrientation::apply);
    EXPECT_EQ(whole, (ImageShape{.height = stored.width, .width = stored.height, .channels = 3}));
    OwnSizeImage image;
    decode_own_size(
        whole, 3, [](const ImageShape&) { return ImageShape{.height = 40, .width = 40}; }, image);
    EXPECT_EQ(image.reduction, stored.height % 8 == 0 ? 4 : 1);
    const auto red = [&](std::int64_t row, std::int64_t column) {
      return image.pixels[static_cast<std::size_t>((row * image.shape.width + column) * 3)];
    };
    EXPECT_GT(red(5, 2), 235);
    EXPECT_LT(red(5, image.shape.width - 3), 20);
  }
}

TEST(Orientation, IsReadFromTheExifChunkOfPngFiles) {
  const ImageShape stored{.height = 2, .width = 3, .channels = 1};
  Bytes png = encode_png(stored, Bytes{1, 2, 3, 4, 5, 6});
  insert_chunk(png, "eXIf", exif(3, false));
  ImageDecoder& decoder = ImageDecoder::of_this_thread();
  EXPECT_EQ(decoder.open("x.png", png, ExifOrientation::apply), stored);
  Bytes pixels(6);
  decoder.decode(stored, pixels);
  EXPECT_EQ(pixels, (Bytes{6, 5, 4, 3, 2, 1}));
}

// Shapes are read from the first 64 KiB of a file where these are enough.
TEST(Orientation, IsReadFromAnExifChunkAfterLargeOtherChunks) {
  Bytes png = encode_png({.height = 2, .width = 3, .channels = 1}, Bytes{1, 2, 3, 4, 5, 6});
  insert_chunk(png, "eXIf", exif(6, false));
  insert_chunk(png, "teSt", Bytes(std::size_t{100} << 10));
  const TemporaryFolder folder;
  folder.write("train/a/1.png", png);
  const auto shown = open_image_folder({.path = folder.path()}, Split::train);
  ASSERT_EQ(shown->image_shape(), (ImageShape{.height = 3, .width = 2, .channels = 1}));
  EXPECT_EQ(read(*shown, 0), (Bytes{4, 1, 5, 2, 6, 3}));
}

// The second image has more than 64 KiB: its shape is read from the first and the last bytes of the file.
TEST(Orientation, IsReadFromAnExifChunkAfterThePixelsOfPngFiles) {
  for (const ImageShape& stored : {ImageShape{.height = 2, .width = 3, .channels = 1},
                                   ImageShape{.height = 300, .width = 500, .channels = 1}}) {
    const Bytes pixels = noise(stored, 1);
    Bytes png = encode_png(stored, pixels), expected(pixels.size());
    insert_late_chunk(png, "eXIf", exif(6, false));
    insert_late_chunk(png, "teSt", {1, 2, 3});
    const TemporaryFolder folder;
    folder.write("train/a/1.png", png);
    const auto shown = open_image_folder({.path = folder.path()}, Split::train);
    ASSERT_EQ(shown->image_shape(),
              (ImageShape{.height = stored.width, .width = stored.height, .channels = 1}));
    turn(pixels, stored, 6, expected);
    EXPECT_EQ(read(*shown, 0), expected);
  }
}

TEST(Orientation, IsNotReadFromTheDataOfOtherChunks) {
  const Bytes plain = encode_png({.height = 2, .width = 3, .channels = 1}, Bytes{1, 2, 3, 4, 5, 6});
  Bytes chunk;
  append_chunk(chunk, "eXIf", exif(6, false));
  for (const auto insert : {insert_chunk, insert_late_chunk}) {
    Bytes png = plain;
    insert(png, "teSt", chunk);
    EXPECT_EQ(exif_orientation(png), 1);
  }
}

}  // namespace
}  // namespace lockstep
