// SPDX-License-Identifier: Apache-2.0
//
// RecordWriter: writes one record file (data/records/record_layout.h), which is there whole or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/atomic_file.h"
#include "data/records/record_layout.h"

namespace lockstep {

// What all shards of a split have in common, and which one this is.
struct RecordSchema {
  ImageCoding coding = ImageCoding::pixels;
  ImageShape shape;
  bool own_sizes = false;  // of image files: theirs may be other ones
  std::int64_t classes = 0;
  std::vector<std::string> class_names;  // of all classes, or none
  std::uint64_t source = 0;
  std::int64_t shard = 0, shards = 1;
};

class RecordWriter {
 public:
  // Throws IoError where the file cannot be made, as the others do where it cannot be written; ConfigError
  // for a class's name of more than 65535 bytes and for images that are too large.
  RecordWriter(const std::filesystem::path& path, const RecordSchema& schema);

  // Pixels are uint8 [H, W, C]. One image or more.
  void add(std::span<const std::uint8_t> image, std::int32_t label);
  // Once, and last. Without it nothing is left behind.
  void finish();

 private:
  void write(std::string_view bytes);

  RecordSchema schema_;
  AtomicFile file_;
  RecordHeader header_;
  std::vector<char> buffer_;  // of what is to be written
  std::uint64_t written_ = 0;
  std::vector<RecordEntry> table_;
};

}  // namespace lockstep
