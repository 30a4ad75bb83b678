// SPDX-License-Identifier: Apache-2.0
//
// The layout of a record file (.lsr), byte for byte; data/records/README.md describes it. A file is one shard
// of a split: a header, the names of the classes, images without gaps, a table with each image's offset, and
// a footer. All numbers are little-endian. Every byte is covered by a CRC-32C checksum (core/files/crc32c.h).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "data/dataset.h"

namespace lockstep {

static_assert(std::endian::native == std::endian::little, "record files are read and written as they are");

inline constexpr std::string_view kRecordMagic = "\x89LSR\r\n\x1a\n";  // like PNG's: detects text-mode damage
inline constexpr std::string_view kRecordEnd = "LSR\x89";
inline constexpr std::uint32_t kByteOrder = 0x01020304;
inline constexpr std::uint32_t kRecordVersion = 1;
inline constexpr std::uint64_t kTableAlignment = 64;
inline constexpr std::uint32_t kMostRecordClasses = kMostLabels;
inline constexpr std::uint32_t kMostRecordNameBytes = 64 << 20;  // of all class names

// The first bytes of a file.
struct RecordHeader {
  char magic[8] = {};
  std::uint32_t byte_order = kByteOrder;
  std::uint32_t version = kRecordVersion;
  std::uint32_t coding = 0;  // ImageCoding
  // Shape of every image; with own_sizes, of the first training image.
  std::uint32_t height = 0, width = 0, channels = 0;
  std::uint32_t classes = 0;
  std::uint32_t shard = 0, shards = 0;
  std::uint32_t name_bytes = 0;  // of the class names after the header; 0: no names
  // Hash of the packed dataset and the packing options; the same in all shards of a split.
  std::uint64_t source = 0;
  std::uint32_t own_sizes = 0;  // 1: images, stored as files, may differ in size
  char zeros[60] = {};
  std::uint32_t names_crc = 0;
  std::uint32_t header_crc = 0;  // of all bytes before this one
};
static_assert(sizeof(RecordHeader) == 128);

// A row of the table. The table begins at a multiple of kTableAlignment; the zeros between the last image and
// the table belong to the table's checksum.
struct RecordEntry {
  std::uint64_t offset = 0;  // of the image, from the beginning of the file
  std::uint32_t bytes = 0;
  std::uint32_t crc = 0;  // of the image
  std::int32_t label = 0;
  std::uint32_t zero = 0;
};
static_assert(sizeof(RecordEntry) == 24);

// The last bytes of a file, written last.
struct RecordFooter {
  std::uint64_t records = 0;
  std::uint64_t table = 0;       // offset of the table
  std::uint64_t file_bytes = 0;  // of the whole file
  char zeros[24] = {};
  std::uint32_t table_crc = 0;   // of all bytes from the end of the last image to the footer
  std::uint32_t header_crc = 0;  // copy: this footer belongs to that header
  std::uint32_t footer_crc = 0;  // of all bytes before this one
  char end[4] = {};
};
static_assert(sizeof(RecordFooter) == 64);

template <typename T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}
// The bytes that header_crc and footer_crc cover.
inline std::string_view checked_part(const RecordHeader& header) {
  return bytes_of(header).substr(0, offsetof(RecordHeader, header_crc));
}
inline std::string_view checked_part(const RecordFooter& footer) {
  return bytes_of(footer).substr(0, offsetof(RecordFooter, footer_crc));
}

}  // namespace lockstep
