// SPDX-License-Identifier: Apache-2.0
//
// RecordFile: one shard of a record file set, open for reading by many threads at once. Its table is mapped
// into memory, which the ranks of a node share. So are its images where the set is small enough to stay in
// the page cache: then an image costs no system call, which takes three times as long as copying 3 KB. Where
// it is not, an image is read by one call, and what a process holds does not depend on the size of the set. A
// file must not be changed while it is open: looking into a mapping behind its new end ends the process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/readable_file.h"
#include "data/records/record_layout.h"

namespace lockstep {

class RecordFile {
 public:
  enum class Access {
    mapped,  // images, too
    read,
  };

  // Checks everything but the images themselves. Throws IoError for a file that cannot be read; DataError,
  // with file and offset, for one that is none of ours, of another version, cut off, changed anywhere before
  // or behind the images, or whose table leads out of it.
  explicit RecordFile(const std::filesystem::path& path, Access access = Access::read);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  const std::string& path() const { return file_.name(); }
  const RecordHeader& header() const { return header_; }
  const std::vector<std::string>& class_names() const { return class_names_; }
  // Of everything but the images' bytes, of which it has the checksums.
  std::uint64_t fingerprint() const { return fingerprint_; }

  std::int64_t size() const { return static_cast<std::int64_t>(table_.size()); }
  const RecordEntry& entry(std::int64_t index) const { return table_[static_cast<std::size_t>(index)]; }
  // "cifar/train-00000-of-00001.lsr: record 7, at byte 21632"
  std::string place(std::int64_t index) const;

  // All bytes of an image, copied into as many; or where they lie, which is the mapping or, else, scratch.
  // Checked where the image was not before. Thread-safe. Throw IoError, and DataError with file, record and
  // offset for an image that is not what was written.
  void read(std::int64_t index, std::span<std::uint8_t> image) const;
  std::span<const std::uint8_t> look_at(std::int64_t index, std::vector<std::uint8_t>& scratch) const;

  // A hint: it is read soon.
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
  const std::uint8_t* images_ = nullptr;  // the whole file, where it is mapped
  std::span<const RecordEntry> table_;
  std::uint64_t table_begin_ = 0;
  std::uint64_t fingerprint_ = 0;
  std::unique_ptr<CheckedRecords> checked_;
};

}  // namespace lockstep
