// SPDX-License-Identifier: Apache-2.0
//
// PNG images in memory, by libspng.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace lockstep {

bool is_png(std::span<const std::uint8_t> image);

// Height and width, and 1 channel for grayscale, 3 for any other. name: for messages. Throws DataError for
// what is no PNG image, or its header damaged.
ImageShape png_shape(std::string_view name, std::span<const std::uint8_t> image);

// Whether it is an animated PNG (APNG). `image` may be its first bytes only.
bool is_animated_png(std::span<const std::uint8_t> image);

// The largest value of a grayscale image of 16 bits; none for any other image. Throws DataError.
std::optional<std::uint32_t> largest_16_bit_gray(std::string_view name, std::span<const std::uint8_t> image);

// The shape has the image's height and width, and 1 or 3 channels of either kind; pixels are [H, W, C].
// Transparency is left out, values of 16 bits are divided by 257 and rounded, palettes are looked up, and
// colour is made grayscale as libjpeg does it. No colour profile or gamma is applied, as Pillow applies none.
// Throws DataError.
void decode_png(std::string_view name, std::span<const std::uint8_t> image, const ImageShape& shape,
                std::span<std::uint8_t> pixels);

// pixels: [H, W, C] of 1 or 3 channels.
std::vector<std::uint8_t> encode_png(const ImageShape& shape, std::span<const std::uint8_t> pixels);

}  // namespace lockstep
