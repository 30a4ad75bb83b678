// SPDX-License-Identifier: Apache-2.0
#include "data/images/png.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "core/error.h"
#include "data/dataset.h"
#include "data/images/luma.h"
#include "tests/data/images/png_chunks.h"
#include "tests/data/jpeg_files.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"
#include "tests/thinning.h"

namespace lockstep {
namespace {

Bytes decoded(const Bytes& png, const ImageShape& shape) {
  Bytes pixels(static_cast<std::size_t>(shape.bytes()));
  decode_png("x.png", png, shape, pixels);
  return pixels;
}

TEST(Png, ColourAndGrayRoundTrip) {
  for (const ImageShape& shape : {kColour, kGray}) {
    const Bytes pixels = noise(shape, 3);
    const Bytes png = encode_png(shape, pixels);
    EXPECT_TRUE(is_png(png));
    EXPECT_EQ(png_shape("x.png", png), shape);
    EXPECT_EQ(decoded(png, shape), pixels);
  }
}

TEST(Png, ConvertsBetweenColourAndGray) {
  const Bytes colours = noise(kColour, 4), grays = noise(kGray, 5);
  const Bytes as_gray = decoded(encode_png(kColour, colours), kGray);
  for (std::size_t i = 0; i < as_gray.size(); ++i)
    EXPECT_EQ(as_gray[i], luma(colours[3 * i], colours[3 * i + 1], colours[3 * i + 2]));
  const Bytes as_colour = decoded(encode_png(kGray, grays), kColour);
  for (std::size_t i = 0; i < as_colour.size(); ++i) EXPECT_EQ(as_colour[i], grays[i / 3]);
}

struct PngFormat {
  int depth = 8;
  int colour_type = 0;  // 0: gray, 2: RGB, 3: palette, 4: gray and alpha, 6: RGB and alpha
  bool interlaced = false;
  bool transparent = false;  // one gray level, colour or entry of the palette
  Bytes palette = {};        // RGB
};

std::int64_t samples_of_a_pixel(const PngFormat& format) {
  return format.colour_type == 2 ? 3 : format.colour_type == 4 ? 2 : format.colour_type == 6 ? 4 : 1;
}

struct PngSamples {
  std::int64_t height = 0, width = 0;
  std::vector<std::uint32_t> values;
};

Bytes packed(std::span<const std::uint32_t> samples, int depth) {
  Bytes row;
  std::uint64_t bits = 0;
  int count = 0;
  const auto push = [&](std::uint32_t value, int width) {
    bits = bits << width | value;
    for (count += width; count >= 8; count -= 8)
      row.push_back(static_cast<std::uint8_t>(bits >> (count - 8) & 0xff));
  };
  for (const std::uint32_t sample : samples) push(sample, depth);
  if (count > 0) push(0, 8 - count);
  return row;
}

// The prediction that PNG's filter subtracts from a byte: the left byte, the upper one, their mean, or the
// nearest of left, upper and corner to left + above - corner.
int predicted(int filter, int left, int above, int corner) {
  if (filter == 3) return (left + above) / 2;
  if (filter < 3) return filter == 1 ? left : filter == 2 ? above : 0;
  const int sum = left + above - corner;
  const int to_left = std::abs(sum - left), to_above = std::abs(sum - above),
            to_corner = std::abs(sum - corner);
  return to_left <= to_above && to_left <= to_corner ? left : to_above <= to_corner ? above : corner;
}

// Appends the rows before compression, each with a different filter.
void append_rows(Bytes& to, const PngFormat& format, const PngSamples& image) {
  if (image.height == 0 || image.width == 0) return;
  const auto row_samples = static_cast<std::size_t>(image.width * samples_of_a_pixel(format));
  const auto step =
      static_cast<std::size_t>(std::max<std::int64_t>(1, samples_of_a_pixel(format) * format.depth / 8));
  Bytes before;
  for (std::int64_t y = 0; y < image.height; ++y) {
    const Bytes row =
        packed(std::span(image.values).subspan(static_cast<std::size_t>(y) * row_samples, row_samples),
               format.depth);
    before.resize(row.size());
    const auto filter = static_cast<int>(y % 5);
    to.push_back(static_cast<std::uint8_t>(filter));
    for (std::size_t i = 0; i < row.size(); ++i) {
      const int left = i < step ? 0 : row[i - step], corner = i < step ? 0 : before[i - step];
      to.push_back(static_cast<std::uint8_t>(row[i] - predicted(filter, left, before[i], corner)));
    }
    before = row;
  }
}

// The pixels of a pass of Adam7.
PngSamples pass_of(const PngFormat& format, const PngSamples& image, int pass) {
  constexpr std::int64_t kTop[] = {0, 0, 4, 0, 2, 0, 1}, kLeft[] = {0, 4, 0, 2, 0, 1, 0};
  constexpr std::int64_t kDown[] = {8, 8, 8, 4, 4, 2, 2}, kAcross[] = {8, 8, 4, 4, 2, 2, 1};
  const std::int64_t samples = samples_of_a_pixel(format);
  PngSamples part;
  for (std::int64_t y = kTop[pass]; y < image.height; y += kDown[pass], ++part.height) {
    part.width = 0;
    for (std::int64_t x = kLeft[pass]; x < image.width; x += kAcross[pass], ++part.width)
      for (std::int64_t i = 0; i < samples; ++i)
        part.values.push_back(image.values[static_cast<std::size_t>((y * image.width + x) * samples + i)]);
  }
  return part;
}

Bytes png_of(const PngFormat& format, const PngSamples& image) {
  Bytes png = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'}, header, rows;
  append_word(header, static_cast<std::uint32_t>(image.width));
  append_word(header, static_cast<std::uint32_t>(image.height));
  for (const int byte : {format.depth, format.colour_type, 0, 0, format.interlaced ? 1 : 0})
    header.push_back(static_cast<std::uint8_t>(byte));
  if (format.interlaced) {
    for (int pass = 0; pass < 7; ++pass) append_rows(rows, format, pass_of(format, image, pass));
  } else {
    append_rows(rows, format, image);
  }
  uLongf size = compressBound(rows.size());
  Bytes compressed(size);
  EXPECT_EQ(compress2(compressed.data(), &size, rows.data(), rows.size(), Z_BEST_SPEED), Z_OK);
  compressed.resize(size);
  append_chunk(png, "IHDR", header);
  if (!format.palette.empty()) append_chunk(png, "PLTE", format.palette);
  if (format.transparent)
    append_chunk(png, "tRNS", Bytes(format.colour_type == 3 ? 1 : format.colour_type == 2 ? 6 : 2));
  append_chunk(png, "IDAT", compressed);
  append_chunk(png, "IEND", {});
  return png;
}

// A PNG with one row of samples of any depth: gray (colour_type 0) or RGB (2).
Bytes png_of(int depth, int colour_type, const std::vector<std::uint32_t>& samples) {
  const PngFormat format{.depth = depth, .colour_type = colour_type};
  return png_of(format,
                {.height = 1, .width = std::ssize(samples) / samples_of_a_pixel(format), .values = samples});
}

// Rounded to the nearest of 256 levels.
TEST(Png, SamplesOfEveryDepthSpanTheSameRange) {
  for (const int depth : {1, 2, 4, 8, 16}) {
    const std::uint32_t most = (1u << depth) - 1;
    std::vector<std::uint32_t> samples;
    for (std::uint32_t value = 0; value <= most; value += depth == 16 ? 37 : 1) samples.push_back(value);
    samples.push_back(most);
    while (samples.size() % 3 != 0) samples.push_back(most / 3);
    const auto width = static_cast<std::int64_t>(samples.size());
    const Bytes gray = decoded(png_of(depth, 0, samples), {.height = 1, .width = width, .channels = 1});
    const Bytes coloured = decoded(png_of(depth, 0, samples), {.height = 1, .width = width, .channels = 3});
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const long expected = std::lround(255.0 * samples[i] / most);
      ASSERT_EQ(gray[i], expected) << samples[i] << " of " << depth << " bits";
      ASSERT_EQ(coloured[3 * i + 1], expected) << samples[i] << " of " << depth << " bits";
    }
    if (depth < 8) continue;
    const Bytes colours =
        decoded(png_of(depth, 2, samples), {.height = 1, .width = width / 3, .channels = 3});
    for (std::size_t i = 0; i < samples.size(); ++i)
      ASSERT_EQ(colours[i], std::lround(255.0 * samples[i] / most)) << samples[i] << " of " << depth;
  }
}

// The red, green and blue of a pixel with these samples, without alpha.
std::vector<std::uint8_t> colour_of(const PngFormat& format, const std::uint32_t* samples) {
  if (format.colour_type == 3) {
    const auto* entry = format.palette.data() + 3 * samples[0];
    return {entry, entry + 3};
  }
  const auto level = [&](std::uint32_t sample) {
    return static_cast<std::uint8_t>(std::lround(255.0 * sample / ((1u << format.depth) - 1)));
  };
  const bool gray = format.colour_type != 2 && format.colour_type != 6;
  return {level(samples[0]), level(samples[gray ? 0 : 1]), level(samples[gray ? 0 : 2])};
}

// Rows shorter than a byte, interlaced passes without pixels, and each filter with each pixel size.
TEST(Png, EveryFormatAndSizeIsDecodedExactly) {
  std::vector<PngFormat> formats;
  for (const auto& [colour_type, depths] : std::vector<std::pair<int, std::vector<int>>>{
           {0, {1, 2, 4, 8, 16}}, {2, {8, 16}}, {3, {1, 2, 4, 8}}, {4, {8, 16}}, {6, {8, 16}}}) {
    for (const int depth : depths) {
      PngFormat format{.depth = depth, .colour_type = colour_type};
      if (colour_type == 3) format.palette = noise({1, 1 << depth, 3}, 7);
      formats.push_back(format);
      format.interlaced = true;
      format.transparent = colour_type < 4;
      formats.push_back(format);
    }
  }
  std::vector<std::int64_t> sides = {127, 128, 129, 255, 256, 257};
  for (std::int64_t side = 1; side <= 64; ++side) sides.push_back(side);
  Thinning thinning;
  for (const PngFormat& format : formats) {
    const std::int64_t samples = samples_of_a_pixel(format);
    for (std::size_t i = 0; i < sides.size(); ++i) {
      if (!thinning.takes()) continue;
      PngSamples image{.height = sides[i], .width = sides[i * 37 % sides.size()], .values = {}};
      const std::string name = fmt::format("{} x {}, type {}, depth {}", image.height, image.width,
                                           format.colour_type, format.depth);
      const Bytes random = noise({image.height, image.width, 2 * samples}, static_cast<std::uint32_t>(i));
      for (std::size_t at = 0; at < random.size(); at += 2)
        image.values.push_back((random[at] << 8u | random[at + 1]) & ((1u << format.depth) - 1));
      const Bytes png = png_of(format, image);
      const bool gray = format.colour_type == 0 || format.colour_type == 4;
      ASSERT_EQ(png_shape("x.png", png), (ImageShape{image.height, image.width, gray ? 1 : 3})) << name;
      const Bytes colours = decoded(png, {image.height, image.width, 3});
      const Bytes grays = decoded(png, {image.height, image.width, 1});
      for (std::size_t at = 0; at < grays.size(); ++at) {
        const Bytes expected =
            colour_of(format, image.values.data() + at * static_cast<std::size_t>(samples));
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), colours.begin() + static_cast<long>(3 * at)))
            << name << ", at " << at;
        ASSERT_EQ(grays[at], luma(expected[0], expected[1], expected[2])) << name << ", at " << at;
      }
    }
  }
}

// A thread decodes one mask after the other into the same memory.
TEST(Png, ValuesOfAMaskDoNotDependOnTheMaskBefore) {
  for (const int depth : {1, 2, 4, 8}) {
    for (const bool interlaced : {false, true}) {
      const PngFormat format{.depth = depth, .interlaced = interlaced};
      for (const std::uint32_t seed : {1u, 2u, 3u}) {
        constexpr std::int64_t kHeight = 13, kWidth = 11;
        PngSamples mask{.height = kHeight, .width = kWidth, .values = {}};
        for (const std::uint8_t value : noise({kHeight, kWidth, 1}, seed))
          mask.values.push_back(value & ((1u << depth) - 1));
        Bytes values(mask.values.size());
        decode_png_values("x.png", png_of(format, mask), {kHeight, kWidth, 1}, values);
        EXPECT_TRUE(std::ranges::equal(values, mask.values))
            << depth << " bits, mask " << seed << (interlaced ? ", interlaced" : "");
      }
    }
  }
}

TEST(Png, AHeaderOfAHugeImageIsRefusedBeforeItsPixelsAreDecoded) {
  expect_parts(message_of<DataError>([&] { largest_16_bit_gray("x.png", huge_png(16)); }),
               {"x.png", std::to_string(1 << 20), std::to_string(kMostImageBytes)});
}

// A 10-bit camera that uses the lower bits of 16: only the maximum of several images shows it.
TEST(Png, LowSixteenBitValuesCauseOneWarning) {
  const TemporaryFolder folder;
  const auto warnings = [&](Split split) {
    testing::internal::CaptureStderr();
    open_dataset({.format = "image_folder", .path = folder.path(), .synthetic = {}}, split);
    return testing::internal::GetCapturedStderr();
  };
  for (const char* name : {"train/a/1.png", "train/a/2.png", "train/b/1.png", "test/a/1.png"})
    folder.write(name, png_of(16, 0, {256, 511, 1023}));
  const std::string warning = warnings(Split::train);
  expect_parts(warning, {"warning", folder.path().string(), "16-bit", "1023", "65535"});
  EXPECT_EQ(std::ranges::count(warning, '\n'), 1);
  EXPECT_EQ(warnings(Split::test), "");
  folder.write("train/a/2.png", png_of(16, 0, {256, 511, 4096}));
  EXPECT_EQ(warnings(Split::train), "") << "one bright image shows that all 16 bits are used";
}

TEST(Png, ImagesWhoseContentIsTransparencyCauseAWarning) {
  const PngFormat palette{.colour_type = 3, .transparent = true, .palette = Bytes(6)};  // black twice
  for (const Bytes& glyph : {png_of(8, 4, {0, 0, 0, 255}), png_of(8, 6, {7, 8, 9, 0, 7, 8, 9, 255}),
                             png_of(palette, {.height = 1, .width = 2, .values = {0, 1}})}) {
    const TemporaryFolder folder;
    const auto warnings = [&] {
      testing::internal::CaptureStderr();
      open_dataset({.format = "image_folder", .path = folder.path(), .synthetic = {}}, Split::train);
      return testing::internal::GetCapturedStderr();
    };
    for (const char* name : {"train/a/1.png", "train/b/1.png"}) folder.write(name, glyph);
    const std::string warning = warnings();
    expect_parts(warning, {"warning", folder.path().string(), "each of 2", "transparency"});
    EXPECT_EQ(std::ranges::count(warning, '\n'), 1) << warning;
    folder.write("train/b/1.png", png_of(8, 6, {7, 8, 9, 0, 0, 8, 9, 255}));
    EXPECT_EQ(lines_naming(warnings(), "transparency"), "") << "one image has two colours";
  }
}

Bytes animated_png(const ImageShape& shape, std::uint32_t seed) {
  constexpr long kBehindHeader = 8 + 25;
  Bytes png = encode_png(shape, noise(shape, seed)), control, count;
  append_word(count, 2);
  append_word(count, 0);
  append_chunk(control, "acTL", count);
  png.insert(png.begin() + kBehindHeader, control.begin(), control.end());
  return png;
}

TEST(Png, AnAnimatedImageIsReadAsItsFirstFrameWithAWarning) {
  const Bytes animated = animated_png(kColour, 8), still = encode_png(kColour, noise(kColour, 8));
  EXPECT_EQ(decoded(animated, kColour), noise(kColour, 8));
  EXPECT_TRUE(is_animated_png(animated));
  EXPECT_FALSE(is_animated_png(still));
  for (std::size_t length = 0; length < animated.size(); ++length)
    EXPECT_EQ(is_animated_png(std::span(animated).first(length)), length >= 8 + 25 + 12) << length;
  const TemporaryFolder folder;
  folder.write("train/a/1.png", animated);
  folder.write("train/b/1.png", still);
  testing::internal::CaptureStderr();
  open_dataset({.format = "image_folder", .path = folder.path(), .synthetic = {}}, Split::train);
  expect_parts(testing::internal::GetCapturedStderr(),
               {"warning", folder.path().string(), "1 of 2", "animated"});
}

TEST(Png, DamageIsNamed) {
  const Bytes png = encode_png(kColour, noise(kColour, 6));
  for (std::size_t length = 0; length < png.size() - 12; ++length) {  // all but the end chunk
    const Bytes part(png.begin(), png.begin() + static_cast<long>(length));
    expect_parts(message_of<DataError>([&] { decoded(part, kColour); }), {"x.png"});
  }
  for (std::size_t at = 0; at < png.size() - 12; ++at) {
    Bytes flipped = png;
    flipped[at] ^= 0x10;
    EXPECT_NE(message_of<DataError>([&] {
                if (png_shape("x.png", flipped) == kColour)
                  decoded(flipped, kColour);
                else
                  throw DataError("x.png: not a PNG image of that size");
              }).find("x.png"),
              std::string::npos)
        << at;
  }
}

}  // namespace
}  // namespace lockstep
