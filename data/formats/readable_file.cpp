// SPDX-License-Identifier: Apache-2.0
#include "data/formats/readable_file.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"

namespace lockstep {

// O_NONBLOCK: opening a FIFO would otherwise wait for a writer; no effect on regular files.
ReadableFile::ReadableFile(const std::filesystem::path& path)
    : name_(path.string()), descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  struct stat status = {};
  const bool there = descriptor_ >= 0 && fstat(descriptor_, &status) == 0;
  const int error = errno;
  if (there && S_ISREG(status.st_mode)) {
    bytes_ = static_cast<std::uint64_t>(status.st_size);
    changed_ns_ = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
    return;
  }
  if (descriptor_ >= 0) close(descriptor_);
  throw IoError(
      fmt::format("{}: cannot be read: {}", name_, there ? "not a regular file" : std::strerror(error)));
}

ReadableFile::ReadableFile(ReadableFile&& other) noexcept
    : name_(std::move(other.name_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_(other.bytes_),
      changed_ns_(other.changed_ns_) {}

ReadableFile& ReadableFile::operator=(ReadableFile&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(descriptor_, other.descriptor_);
  bytes_ = other.bytes_;
  changed_ns_ = other.changed_ns_;
  return *this;
}

ReadableFile::~ReadableFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void ReadableFile::read(std::uint64_t offset, void* to, std::size_t bytes) const {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = pread(descriptor_, at, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw IoError(fmt::format("{}: cannot be read: {}", name_, std::strerror(errno)));
    if (got == 0)
      throw DataError(fmt::format("{}: at byte {}: the file ends here; it is truncated", name_, offset));
    at += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
}

}  // namespace lockstep
