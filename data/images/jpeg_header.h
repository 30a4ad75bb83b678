// SPDX-License-Identifier: Apache-2.0
//
// Reads the header of a JPEG file (ITU-T T.81, B.2) without a library, which for small images takes a tenth
// of the time. TurboJPEG reads the header again when it decodes, and detects errors then.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace lockstep {

struct JpegHeader {
  int height = 0, width = 0;
  int components = 0;  // 1, 3 or 4
  // One-pass image that contains every table it needs: it cannot depend on tables of an earlier image.
  bool has_its_tables = false;
};

// Returns none for an unusual or malformed header.
std::optional<JpegHeader> read_jpeg_header(std::span<const std::uint8_t> image);

}  // namespace lockstep
