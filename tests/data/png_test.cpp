// SPDX-License-Identifier: Apache-2.0
#include "data/png.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <zlib.h>

#include "core/error.h"
#include "data/dataset.h"
#include "data/luma.h"
#include "tests/data/jpeg_files.h"
#include "tests/data/temporary_folder.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

Bytes decoded(const Bytes& png, const ImageShape& shape) {
  Bytes pixels(static_cast<std::size_t>(shape.bytes()));
  decode_png("x.png", png, shape, pixels);
  return pixels;
}

TEST(Png, ColourAndGrayComeBackAsTheyWere) {
  for (const ImageShape& shape : {kColour, kGray}) {
    const Bytes pixels = noise(shape, 3);
    const Bytes png = encode_png(shape, pixels);
    EXPECT_TRUE(is_png(png));
    EXPECT_EQ(png_shape("x.png", png), shape);
    EXPECT_EQ(decoded(png, shape), pixels);
  }
}

TEST(Png, ColourBecomesGrayAndGrayColour) {
  const Bytes colours = noise(kColour, 4), grays = noise(kGray, 5);
  const Bytes as_gray = decoded(encode_png(kColour, colours), kGray);
  for (std::size_t i = 0; i < as_gray.size(); ++i)
    EXPECT_EQ(as_gray[i], luma(colours[3 * i], colours[3 * i + 1], colours[3 * i + 2]));
  const Bytes as_colour = decoded(encode_png(kGray, grays), kColour);
  for (std::size_t i = 0; i < as_colour.size(); ++i) EXPECT_EQ(as_colour[i], grays[i / 3]);
}

void append_word(Bytes& to, std::uint32_t word) {
  for (int shift = 24; shift >= 0; shift -= 8) to.push_back(static_cast<std::uint8_t>(word >> shift));
}

void append_chunk(Bytes& to, const std::string& name, const Bytes& data) {
  append_word(to, static_cast<std::uint32_t>(data.size()));
  Bytes checked(name.begin(), name.end());
  checked.insert(checked.end(), data.begin(), data.end());
  to.insert(to.end(), checked.begin(), checked.end());
  append_word(to,
              static_cast<std::uint32_t>(crc32(0, checked.data(), static_cast<unsigned>(checked.size()))));
}

// One row of samples of any depth: gray (colour_type 0) or RGB (2).
Bytes png_of(int depth, int colour_type, const std::vector<std::uint32_t>& samples) {
  Bytes png = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'}, header, row = {0};
  append_word(header, static_cast<std::uint32_t>(samples.size() / (colour_type == 2 ? 3 : 1)));
  append_word(header, 1);
  for (const int byte : {depth, colour_type, 0, 0, 0}) header.push_back(static_cast<std::uint8_t>(byte));
  std::uint64_t bits = 0;
  int count = 0;
  const auto push = [&](std::uint32_t value, int width) {
    bits = bits << width | value;
    for (count += width; count >= 8; count -= 8)
      row.push_back(static_cast<std::uint8_t>(bits >> (count - 8) & 0xff));
  };
  for (const std::uint32_t sample : samples) push(sample, depth);
  if (count > 0) push(0, 8 - count);
  uLongf size = compressBound(row.size());
  Bytes compressed(size);
  EXPECT_EQ(compress(compressed.data(), &size, row.data(), row.size()), Z_OK);
  compressed.resize(size);
  append_chunk(png, "IHDR", header);
  append_chunk(png, "IDAT", compressed);
  append_chunk(png, "IEND", {});
  return png;
}

// To the nearest of 256 levels.
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

// A camera of 10 bits that fills the lower bits of 16: only the largest value of several images shows it.
TEST(Png, LowSixteenBitValuesAreWarnedOfOnce) {
  const TemporaryFolder folder;
  const auto warnings = [&](Split split) {
    testing::internal::CaptureStderr();
    open_dataset({.format = "image_folder", .path = folder.path(), .synthetic = {}}, split);
    return testing::internal::GetCapturedStderr();
  };
  for (const char* name : {"train/a/1.png", "train/a/2.png", "train/b/1.png", "test/a/1.png"})
    folder.write(name, png_of(16, 0, {256, 511, 1023}));
  const std::string warning = warnings(Split::train);
  expect_parts(warning, {"16-bit", "1023", "65535", "scale the values"});
  EXPECT_EQ(std::ranges::count(warning, '\n'), 1);
  EXPECT_EQ(warnings(Split::test), "");
  folder.write("train/a/2.png", png_of(16, 0, {256, 511, 4096}));
  EXPECT_EQ(warnings(Split::train), "") << "one bright image shows that all 16 bits are used";
}

TEST(Png, DamageIsNamed) {
  const Bytes png = encode_png(kColour, noise(kColour, 6));
  for (std::size_t length = 0; length < png.size() - 12; ++length) {  // but for the end's own chunk
    const Bytes part(png.begin(), png.begin() + static_cast<long>(length));
    expect_parts(message_of<DataError>([&] { decoded(part, kColour); }), {"x.png: not a PNG image"});
  }
  for (std::size_t at = 0; at < png.size() - 12; ++at) {
    Bytes flipped = png;
    flipped[at] ^= 0x10;
    EXPECT_NE(message_of<DataError>([&] {
                if (png_shape("x.png", flipped) == kColour)
                  decoded(flipped, kColour);
                else
                  throw DataError("x.png: not a PNG image of that size");
              }).find("x.png: not a PNG image"),
              std::string::npos)
        << at;
  }
}

}  // namespace
}  // namespace lockstep
