// SPDX-License-Identifier: Apache-2.0
//
// JPEG files that tests encode with TurboJPEG, and helpers to read them back.
#pragma once

#include <cstdint>

#include <turbojpeg.h>

#include "data/dataset.h"
#include "tests/temporary_folder.h"

namespace lockstep {

inline constexpr ImageShape kColour{.height = 8, .width = 12, .channels = 3};
inline constexpr ImageShape kGray{.height = 8, .width = 12, .channels = 1};

struct Encoding {
  int format = TJPF_RGB;
  int subsampling = TJSAMP_420;
  int flags = TJFLAG_ACCURATEDCT;
};

// Encodes at quality 95. Without an encoding: RGB or grayscale, according to the shape's channels.
Bytes encode(const ImageShape& shape, const Bytes& pixels, const Encoding& encoding);
Bytes encode(const ImageShape& shape, const Bytes& pixels);
// Decodes with a separate decompressor.
Bytes decode(const Bytes& jpeg, const ImageShape& shape);

// An image with one colour, or one gray level, in all pixels.
Bytes flat(const ImageShape& shape, const Bytes& colour);
// A flat image of shape kColour or kGray, encoded.
Bytes flat_jpeg(const Bytes& colour);
// Replaces the height and width in the header (start of frame).
Bytes with_claimed_size(Bytes jpeg, std::uint16_t height, std::uint16_t width);
// Replaces a table number by one that no image can have: the header is sound, but no pixel can be decoded.
Bytes with_sound_header_only(Bytes jpeg);
Bytes noise(const ImageShape& shape, std::uint32_t seed);
// EXIF data: a TIFF header with one directory, whose second entry is the orientation.
Bytes exif(int orientation, bool little_endian);
// Inserts EXIF data after the start of the file.
Bytes with_exif(Bytes jpeg, int orientation, bool little_endian = true);

// Reads the image into memory of exactly its size, and checks that the read leaves the bytes around it
// unchanged. This also catches writes of code without sanitizers.
Bytes read(const Dataset& dataset, std::int64_t index);

}  // namespace lockstep
