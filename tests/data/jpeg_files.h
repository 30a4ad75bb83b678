// SPDX-License-Identifier: Apache-2.0
//
// JPEG files made by the tests, by TurboJPEG, and how they are read back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

// In quality 95. Without an encoding: RGB or grayscale, as the shape is.
Bytes encode(const ImageShape& shape, const Bytes& pixels, const Encoding& encoding);
Bytes encode(const ImageShape& shape, const Bytes& pixels);
// By a decompressor of its own.
Bytes decode(const Bytes& jpeg, const ImageShape& shape);

// One colour, or gray level, everywhere.
Bytes flat(const ImageShape& shape, const Bytes& colour);
// Of shape kColour or kGray.
Bytes flat_jpeg(const Bytes& colour);
Bytes noise(const ImageShape& shape, std::uint32_t seed);

// The image, in memory of exactly its size; what lies around it must stay as it is, also where code that no
// sanitizer sees writes.
Bytes read(const Dataset& dataset, std::int64_t index);

}  // namespace lockstep
