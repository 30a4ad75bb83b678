// SPDX-License-Identifier: Apache-2.0
#include "data/images/jpeg_header.h"

#include <cstddef>

namespace lockstep {
namespace {

// Markers: the byte after 0xff.
constexpr std::uint8_t kStartOfImage = 0xd8, kQuantizationTables = 0xdb, kHuffmanTables = 0xc4,
                       kArithmeticConditions = 0xcc, kExtension = 0xc8, kStartOfScan = 0xda,
                       kLastOnePassFrame = 0xc1;

bool has_length(std::uint8_t marker) {
  return marker >= 0xc0 && marker < 0xff && (marker < 0xd0 || marker > 0xd9);
}

bool begins_frame(std::uint8_t marker) {
  return marker >= 0xc0 && marker <= 0xcf && marker != kHuffmanTables && marker != kExtension &&
         marker != kArithmeticConditions;
}

// Tables of each kind: one bit per table number, 0 to 3.
struct Tables {
  unsigned quantization = 0;
  unsigned huffman[2] = {};  // DC and AC tables
  bool has(const Tables& needed) const {
    return (needed.quantization & ~quantization) == 0 && (needed.huffman[0] & ~huffman[0]) == 0 &&
           (needed.huffman[1] & ~huffman[1]) == 0;
  }
};

unsigned bit_of(unsigned number) { return 1u << (number & 15); }

// content: of a segment, which may hold several tables.
void add_quantization(std::span<const std::uint8_t> content, Tables& tables) {
  for (std::size_t at = 0; at < content.size();) {
    tables.quantization |= bit_of(content[at]);
    at += content[at] >> 4 == 0 ? 65 : 129;  // 64 numbers of one or two bytes
  }
}

void add_huffman(std::span<const std::uint8_t> content, Tables& tables) {
  for (std::size_t at = 0; at + 17 <= content.size();) {
    tables.huffman[content[at] >> 4 & 1] |= bit_of(content[at]);
    std::size_t values = 0;
    for (std::size_t i = 1; i <= 16; ++i) values += content[at + i];
    at += 17 + values;
  }
}

}  // namespace

std::optional<JpegHeader> read_jpeg_header(std::span<const std::uint8_t> image) {
  if (image.size() < 4 || image[0] != 0xff || image[1] != kStartOfImage) return std::nullopt;
  std::optional<JpegHeader> header;
  bool one_pass = false;
  Tables found, needed;
  for (std::size_t at = 2; at + 4 <= image.size();) {
    const std::uint8_t marker = image[at + 1];
    if (image[at] != 0xff || !has_length(marker)) return std::nullopt;
    const std::size_t length = static_cast<std::size_t>(image[at + 2] << 8 | image[at + 3]);
    if (length < 2 || length > image.size() - at - 2) return header;
    const std::span<const std::uint8_t> content = image.subspan(at + 4, length - 2);
    if (marker == kQuantizationTables) add_quantization(content, found);
    if (marker == kHuffmanTables) add_huffman(content, found);
    if (begins_frame(marker)) {
      if (header || content.size() < 6) return std::nullopt;
      const int components = content[5];
      header = {.height = content[1] << 8 | content[2],
                .width = content[3] << 8 | content[4],
                .components = components};
      const bool usual =
          header->height > 0 && header->width > 0 && (components == 1 || components == 3 || components == 4);
      if (!usual || content.size() != 6 + 3 * static_cast<std::size_t>(components)) return std::nullopt;
      one_pass = marker <= kLastOnePassFrame;
      for (std::size_t i = 6; i < content.size(); i += 3) needed.quantization |= bit_of(content[i + 2]);
    }
    if (marker == kStartOfScan) {
      if (!header || content.empty()) return header;
      const int components = content[0];
      if (content.size() != 4 + 2 * static_cast<std::size_t>(components)) return header;
      for (std::size_t i = 1; i + 3 < content.size(); i += 2) {
        needed.huffman[0] |= bit_of(content[i + 1] >> 4);
        needed.huffman[1] |= bit_of(content[i + 1]);
      }
      header->has_its_tables = one_pass && components == header->components && found.has(needed);
      return header;
    }
    at += 2 + length;
  }
  return header;
}

}  // namespace lockstep
