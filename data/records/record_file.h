// SPDX-License-Identifier: Apache-2.0
//
// RecordFile: one shard of a record file set, open for reading by many threads at once. The table is mapped
// into memory, which the ranks of a node share; images are read with one system call each, straight to where
// they are wanted. (Were they mapped, too, a failing disk would end the process with a signal, and the
// process would seem to hold as much memory as the set has.) A file must not be changed while it is open.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/records/record_layout.h"

namespace lockstep {

class RecordFile {
 public:
  // Checks everything but the images themselves. Throws IoError for a file that cannot be read; DataError,
  // with file and offset, for one that is none of ours, of another version, cut off, changed anywhere before
  // or behind the images, or whose table leads out of it.
  explicit RecordFile(std::filesystem::path path);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const RecordHeader& header() const { return header_; }
  const std::vector<std::string>& class_names() const { return class_names_; }
  // Of everything but the images' bytes, of which it has the checksums.
  std::uint64_t fingerprint() const { return fingerprint_; }

  std::int64_t size() const { return static_cast<std::int64_t>(table_.size()); }
  const RecordEntry& entry(std::int64_t index) const { return table_[static_cast<std::size_t>(index)]; }
  // "cifar/train-00000-of-00001.lsr: record 7, at byte 21632"
  std::string place(std::int64_t index) const;

  // All bytes of an image, into as many; checked where it was not before. Thread-safe. Throws IoError, and
  // DataError with file, record and offset for an image that is not what was written.
  void read(std::int64_t index, std::span<std::uint8_t> image) const;

  std::size_t memory_bytes() const;

 private:
  void read_header();
  void read_names();
  void map_table(const RecordFooter& footer);
  void check_table() const;
  RecordFooter read_footer() const;
  // Exactly so many bytes from there.
  void read_at(std::uint64_t offset, void* to, std::size_t bytes) const;
  [[noreturn]] void fail(std::uint64_t offset, const std::string& what) const;
  [[noreturn]] void fail_to_read(int error) const;

  class CheckedRecords;  // one bit each

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t file_bytes_ = 0;
  RecordHeader header_;
  std::vector<std::string> class_names_;
  void* mapping_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  std::span<const RecordEntry> table_;
  std::uint64_t table_begin_ = 0;
  std::uint64_t fingerprint_ = 0;
  std::unique_ptr<CheckedRecords> checked_;
};

}  // namespace lockstep
