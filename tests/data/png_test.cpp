// SPDX-License-Identifier: Apache-2.0
#include "data/png.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "data/luma.h"
#include "tests/data/jpeg_files.h"
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
