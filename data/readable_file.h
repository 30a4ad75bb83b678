// SPDX-License-Identifier: Apache-2.0
//
// ReadableFile: a regular file that is open for reading, by many threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep {

class ReadableFile {
 public:
  // Throws IoError for what is missing, no regular file, or not to be read.
  explicit ReadableFile(const std::filesystem::path& path);
  ~ReadableFile();
  ReadableFile(ReadableFile&& other) noexcept;
  ReadableFile& operator=(ReadableFile&& other) noexcept;

  const std::string& name() const { return name_; }  // the path as given
  int descriptor() const { return descriptor_; }
  // As they were when it was opened.
  std::uint64_t bytes() const { return bytes_; }
  std::int64_t changed_ns() const { return changed_ns_; }  // when it was last written to

  // Exactly so many bytes from there. Throws IoError; DataError, with the offset, where the file ends before.
  void read(std::uint64_t offset, void* to, std::size_t bytes) const;

 private:
  std::string name_;
  int descriptor_ = -1;
  std::uint64_t bytes_ = 0;
  std::int64_t changed_ns_ = 0;
};

}  // namespace lockstep
