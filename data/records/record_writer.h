// SPDX-License-Identifier: Apache-2.0
//
// RecordWriter: writes one record file (data/records/record_layout.h) atomically.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/files/atomic_file.h"
#include "data/records/record_layout.h"

namespace lockstep {

// The properties that all shards of a split share, and this shard's number.
struct RecordSchema {
  ImageCoding coding = ImageCoding::pixels;
  ImageShape shape;
  bool own_sizes = false;  // image files that may differ in size from `shape`
  std::int64_t classes = 0;
  std::vector<std::string> class_names;  // of all classes, or none
  std::uint64_t source = 0;
  std::int64_t shard = 0, shards = 1;
};

class RecordWriter {
 public:
  // Throws ConfigError for rows of a table, and for images, classes or names beyond the limits of record
  // files. Like add() and finish(), throws IoError if the file cannot be written.
  RecordWriter(const std::filesystem::path& path, const RecordSchema& schema);

  // Pixels are uint8 [H, W, C]. One image or more.
  void add(std::span<const std::uint8_t> image, std::int32_t label);
  // Completes the file. Call it once, last; without it no file remains.
  void finish();

 private:
  void write(std::string_view bytes);

  RecordSchema schema_;
  AtomicFile file_;
  RecordHeader header_;
  std::vector<char> buffer_;  // not written yet
  std::uint64_t written_ = 0;
  std::vector<RecordEntry> table_;
};

}  // namespace lockstep
