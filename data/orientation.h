// SPDX-License-Identifier: Apache-2.0
//
// EXIF orientation (Exif 2.32, tag 0x0112): how an image is turned and mirrored before it is shown. Cameras
// and phones store pixels as the sensor has them and leave the turning to whoever reads the file.
#pragma once

#include <cstdint>
#include <span>

#include "data/dataset.h"

namespace lockstep {

// Of a JPEG file (its APP1 segment) or a PNG file (its eXIf chunk), by its first bytes: 1 to 8; 1, as it is
// stored, where nothing or nothing sound is said.
int exif_orientation(std::span<const std::uint8_t> image);

// Whether height and width change places: 5 to 8.
constexpr bool swaps_sides(int orientation) { return orientation >= 5; }

// stored: [H, W, C] of `shape`, one byte for each channel. Writes the image as it is shown, [W, H, C] where
// the sides change places.
void turn(std::span<const std::uint8_t> stored, const ImageShape& shape, int orientation,
          std::span<std::uint8_t> shown);

}  // namespace lockstep
