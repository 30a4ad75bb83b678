// SPDX-License-Identifier: Apache-2.0
//
// Decodes and encodes PNG images in memory with libspng.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace lockstep {

bool is_png(std::span<const std::uint8_t> image);

// Height and width, and 1 channel for grayscale or 3 for any other. name: for messages. Throws DataError for
// bytes that are no PNG image, and for a damaged header.
ImageShape png_shape(std::string_view name, std::span<const std::uint8_t> image);

// Returns true if the first bytes of a PNG hold all chunks before its pixels.
bool holds_png_header(std::span<const std::uint8_t> part);

// Returns true for an animated PNG (APNG). `image` may be its first bytes only.
bool is_animated_png(std::span<const std::uint8_t> image);

// The largest value of a 16-bit grayscale image; none for any other image. Throws DataError.
std::optional<std::uint32_t> largest_16_bit_gray(std::string_view name, std::span<const std::uint8_t> image);

// Returns true if all pixels have one colour and only their transparency varies. Throws DataError.
bool varies_in_transparency_only(std::string_view name, std::span<const std::uint8_t> image);

// Decodes to pixels [H, W, C]. The shape has the image's height and width, and 1 or 3 channels, for grayscale
// and colour images alike. Transparency is dropped, 16-bit values are divided by 257 and rounded, palettes
// are looked up, and colour becomes grayscale as in libjpeg. As in Pillow, no colour profile or gamma is
// applied. Throws DataError.
void decode_png(std::string_view name, std::span<const std::uint8_t> image, const ImageShape& shape,
                std::span<std::uint8_t> pixels);

// Decodes the values of a grayscale or palette image of at most 8 bits, [H, W], without looking up colours.
// The shape has the image's height and width. Throws DataError, also for an image of another kind.
void decode_png_values(std::string_view name, std::span<const std::uint8_t> image, const ImageShape& shape,
                       std::span<std::uint8_t> values);

// The colours of a palette image, [N, 3]; empty for any other image. Throws DataError.
std::vector<std::uint8_t> png_palette(std::string_view name, std::span<const std::uint8_t> image);

// Encodes values [H, W] as a palette image, with the colours of PASCAL VOC.
std::vector<std::uint8_t> encode_png_values(const ImageShape& shape, std::span<const std::uint8_t> values);

// pixels: [H, W, C] of 1 or 3 channels.
std::vector<std::uint8_t> encode_png(const ImageShape& shape, std::span<const std::uint8_t> pixels);

}  // namespace lockstep
