// SPDX-License-Identifier: Apache-2.0
//
// ReadableFile: a regular file open for reading by many threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep {

class ReadableFile {
 public:
  // Throws IoError if the file is missing, not a regular file, or not readable.
  explicit ReadableFile(const std::filesystem::path& path);
  ~ReadableFile();
  ReadableFile(ReadableFile&& other) noexcept;
  ReadableFile& operator=(ReadableFile&& other) noexcept;

  const std::string& name() const { return name_; }  // the path as given
  int descriptor() const { return descriptor_; }
  // Size and modification time at the time of opening.
  std::uint64_t bytes() const { return bytes_; }
  std::int64_t changed_ns() const { return changed_ns_; }

  // Reads exactly `bytes` bytes at `offset`. Throws IoError, and DataError, with the offset, if the file ends
  // before.
  void read(std::uint64_t offset, void* to, std::size_t bytes) const;

 private:
  std::string name_;
  int descriptor_ = -1;
  std::uint64_t bytes_ = 0;
  std::int64_t changed_ns_ = 0;
};

}  // namespace lockstep
