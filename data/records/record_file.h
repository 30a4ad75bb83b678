// SPDX-License-Identifier: Apache-2.0
//
// RecordFile: one shard of a record file set, open for reading by many threads at once. Its table is mapped
// into memory, which the ranks of a node share. With Access::mapped so are its images: an image then costs no
// system call, which takes three times as long as copying 3 KB. With Access::read, one call reads an image,
// and a process's memory does not depend on the size of the set. Do not change a file while it is open:
// accessing a mapping beyond a truncated file's end kills the process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/formats/readable_file.h"
#include "data/records/record_layout.h"

namespace lockstep {

class RecordFile {
 public:
  enum class Access {
    mapped,  // also map the images
    read,
  };

  // Checks everything but the images themselves. Throws IoError for a file that cannot be read; DataError,
  // with file and offset, for one that is no record file, of another version, cut off, changed anywhere
  // before or after the images, or whose table points outside it.
  explicit RecordFile(const std::filesystem::path& path, Access access = Access::read);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  const std::string& path() const { return file_.name(); }
  const RecordHeader& header() const { return header_; }
  const std::vector<std::string>& class_names() const { return class_names_; }
  // A hash of everything but the images' bytes; it covers their checksums.
  std::uint64_t fingerprint() const { return fingerprint_; }

  std::int64_t size() const { return static_cast<std::int64_t>(table_.size()); }
  const RecordEntry& entry(std::int64_t index) const { return table_[static_cast<std::size_t>(index)]; }
  // "cifar/train-00000-of-00001.lsr: record 7, at byte 21632"
  std::string place(std::int64_t index) const;

  // read() copies an image's bytes into `image`, of the same size. look_at() returns a view of them, in the
  // mapping or in scratch. Both check an image's checksum at its first read, and are thread-safe. They throw
  // IoError, and DataError with file, record and offset for a damaged image.
  void read(std::int64_t index, std::span<std::uint8_t> image) const;
  std::span<const std::uint8_t> look_at(std::int64_t index, std::vector<std::uint8_t>& scratch) const;

  // Hint: the image is read soon.
  void prefetch(std::int64_t index) const;

  std::size_t memory_bytes() const;

 private:
  void read_header();
  void read_names();
  void map(const RecordFooter& footer, Access access);
  void check_table() const;
  RecordFooter read_footer() const;
  void check(std::int64_t index, std::span<const std::uint8_t> image) const;
  [[noreturn]] void fail(std::uint64_t offset, const std::string& what) const;

  class CheckedRecords;  // one bit each

  ReadableFile file_;
  RecordHeader header_;
  std::vector<std::string> class_names_;
  void* mapping_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  const std::uint8_t* images_ = nullptr;  // the whole file, if mapped
  std::span<const RecordEntry> table_;
  std::uint64_t table_begin_ = 0;
  std::uint64_t fingerprint_ = 0;
  std::unique_ptr<CheckedRecords> checked_;
};

}  // namespace lockstep
