// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <zlib.h>

#include "tests/data/jpeg_files.h"

namespace lockstep {

inline void append_word(Bytes& to, std::uint32_t word) {
  for (int shift = 24; shift >= 0; shift -= 8) to.push_back(static_cast<std::uint8_t>(word >> shift));
}

// Appends a chunk of a PNG file, with its checksum.
inline void append_chunk(Bytes& to, const std::string& name, const Bytes& data) {
  append_word(to, static_cast<std::uint32_t>(data.size()));
  Bytes checked(name.begin(), name.end());
  checked.insert(checked.end(), data.begin(), data.end());
  to.insert(to.end(), checked.begin(), checked.end());
  append_word(to,
              static_cast<std::uint32_t>(crc32(0, checked.data(), static_cast<unsigned>(checked.size()))));
}

// The first bytes of a grayscale PNG file that claims 2^20 x 2^20 pixels, of this many bits each.
inline Bytes huge_png(std::uint8_t bits) {
  Bytes png = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'}, header;
  for (const std::uint32_t side : {1u << 20, 1u << 20}) append_word(header, side);
  header.insert(header.end(), {bits, 0, 0, 0, 0});
  append_chunk(png, "IHDR", header);
  return png;
}

// Inserts a chunk before the last one, which is after the pixels.
inline void insert_late_chunk(Bytes& png, const std::string& name, const Bytes& data) {
  Bytes chunk;
  append_chunk(chunk, name, data);
  constexpr std::ptrdiff_t kLastBytes = 12;
  png.insert(png.end() - kLastBytes, chunk.begin(), chunk.end());
}

// Inserts a chunk after the first one.
inline void insert_chunk(Bytes& png, const std::string& name, const Bytes& data) {
  Bytes chunk;
  append_chunk(chunk, name, data);
  constexpr std::ptrdiff_t kFirstEnd = 8 + 25;
  png.insert(png.begin() + kFirstEnd, chunk.begin(), chunk.end());
}

}  // namespace lockstep
