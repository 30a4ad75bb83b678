// SPDX-License-Identifier: Apache-2.0
#include "core/atomic_file.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "core/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Random, since processes on other nodes that share the folder may have this process's number.
fs::path temporary_for(const fs::path& target) {
  std::random_device random;
  const std::uint64_t number = std::uint64_t{random()} << 32 | random();
  return target.string() + fmt::format("{}{:016x}", kPartialMark, number);
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& path) : path_(path) {
  std::error_code error;
  target_ = fs::canonical(path, error);
  if (error) target_ = fs::absolute(path);  // nothing there yet
  const fs::file_status status = fs::status(target_, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    descriptor_ = open(target_.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor_ < 0) fail(errno);
    return;
  }
  const fs::path temporary = temporary_for(target_);
  descriptor_ = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail(errno);
  temporary_ = temporary;
  removed_at_end_.emplace(temporary_);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, at, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(errno);
    at += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::commit() {
  CHECK(descriptor_ >= 0, "{} was committed before", path_.string());
  if (!temporary_.empty() && fsync(descriptor_) != 0) fail(errno);
  if (close(std::exchange(descriptor_, -1)) != 0) fail(errno);
  if (temporary_.empty()) return;
  if (rename(temporary_.c_str(), target_.c_str()) != 0) fail(errno);
  temporary_.clear();
  removed_at_end_.reset();
  // The new name is only safe once the folder is on disk, too.
  sync_folder(target_.parent_path());
}

void AtomicFile::fail(int error) const {
  throw IoError(fmt::format("{}: cannot be written: {}", path_.string(), std::strerror(error)));
}

void sync_folder(const fs::path& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  const int error = fsync(descriptor) == 0 ? 0 : errno;
  close(descriptor);
  if (error == EIO || error == ENOSPC || error == EDQUOT)
    throw IoError(fmt::format("{}: cannot be written: {}", folder.string(), std::strerror(error)));
}

void write_atomically(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace lockstep
