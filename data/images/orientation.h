// SPDX-License-Identifier: Apache-2.0
//
// EXIF orientation (Exif 2.32, tag 0x0112): how an image is turned and mirrored before it is shown. Cameras
// and phones store pixels as the sensor has them and expect the reader to turn the image.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "data/dataset.h"

namespace lockstep {

// The end of a PNG file in which an eXIf chunk after the pixels is found.
inline constexpr std::size_t kLateExifBytes = std::size_t{64} << 10;

// Returns the orientation, 1 to 8, of a JPEG file (APP1 segment) or a PNG file (eXIf chunk); 1 (as stored) if
// there is none or it is not valid. first: the bytes before the pixels, or more. last: the last
// kLateExifBytes of a PNG file, or more.
int exif_orientation(std::span<const std::uint8_t> first, std::span<const std::uint8_t> last);
inline int exif_orientation(std::span<const std::uint8_t> image) { return exif_orientation(image, image); }

// Returns true if the orientation swaps height and width: 5 to 8.
constexpr bool swaps_sides(int orientation) { return orientation >= 5; }

// stored: uint8 [H, W, C] of `shape`. Writes the image as shown, [W, H, C] if the sides are swapped.
void turn(std::span<const std::uint8_t> stored, const ImageShape& shape, int orientation,
          std::span<std::uint8_t> shown);

}  // namespace lockstep
