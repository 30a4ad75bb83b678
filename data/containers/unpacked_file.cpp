// SPDX-License-Identifier: Apache-2.0
#include "data/containers/unpacked_file.h"

#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <zlib.h>

#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/log.h"
#include "data/containers/split_files.h"
#include "data/formats/readable_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

bool is_packed(const ReadableFile& file) {
  unsigned char begin[2] = {};
  if (file.bytes() < sizeof(begin)) return false;
  file.read(0, begin, sizeof(begin));
  return begin[0] == 0x1f && begin[1] == 0x8b;
}

// Waits until no other process or thread holds a lock on the packed file, and locks it for the lifetime of
// the object. Does nothing if the file system cannot lock it.
class UnpackingLock {
 public:
  // NFS needs write access for an exclusive lock.
  explicit UnpackingLock(const fs::path& packed) : descriptor_(open(packed.c_str(), O_RDWR | O_CLOEXEC)) {
    if (descriptor_ < 0) descriptor_ = open(packed.c_str(), O_RDONLY | O_CLOEXEC);
    while (descriptor_ >= 0 && flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) continue;
  }
  ~UnpackingLock() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  UnpackingLock(const UnpackingLock&) = delete;
  UnpackingLock& operator=(const UnpackingLock&) = delete;

 private:
  int descriptor_;
};

// A file that gets its name when it is complete: the system removes it if the process is killed before.
class UnnamedFile {
 public:
  explicit UnnamedFile(const fs::path& path)
      : path_(path),
        descriptor_(open((path.parent_path() / ".").c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666)) {}
  ~UnnamedFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  UnnamedFile(const UnnamedFile&) = delete;
  UnnamedFile& operator=(const UnnamedFile&) = delete;

  // False on a file system without such files, for example NFS.
  bool is_open() const { return descriptor_ >= 0; }

  // Throws IoError, as commit() does.
  void write(const char* data, std::size_t bytes) {
    while (bytes > 0) {
      const ssize_t written = ::write(descriptor_, data, bytes);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail(errno);
      data += written;
      bytes -= static_cast<std::size_t>(written);
    }
  }

  // Returns false if the system cannot give the file its name.
  bool commit() {
    if (fsync(descriptor_) != 0) fail(errno);
    const std::string unnamed = fmt::format("/proc/self/fd/{}", descriptor_);
    std::error_code error;
    return linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, path_.c_str(), AT_SYMLINK_FOLLOW) == 0 ||
           fs::is_regular_file(path_, error);  // another process was faster
  }

 private:
  [[noreturn]] void fail(int error) const {
    throw IoError(fmt::format("{}: cannot be written: {}", path_.string(), std::strerror(error)));
  }

  fs::path path_;
  int descriptor_;
};

template <typename File>
void unpack_into(File& unpacked, const fs::path& from) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> packed(gzopen(from.c_str(), "rb"), &gzclose);
  if (packed == nullptr) throw IoError(fmt::format("{}: cannot be read", from.string()));
  std::vector<char> piece(std::size_t{1} << 20);
  int bytes = 0;
  while ((bytes = gzread(packed.get(), piece.data(), static_cast<unsigned>(piece.size()))) > 0)
    unpacked.write(piece.data(), static_cast<std::size_t>(bytes));
  int error = Z_OK;
  const char* reason = gzerror(packed.get(), &error);
  // Not an IoError, to which unpacked_file() adds what to do about a failed write.
  if (error == Z_ERRNO) throw Error(exit_code::io, fmt::format("cannot read {}", reason));
  if (error != Z_OK)
    throw DataError(fmt::format("{}: the gzip file is damaged or truncated: {}", from.string(), reason));
}

void unpack(const fs::path& from, const fs::path& to) {
  if (UnnamedFile unnamed(to); unnamed.is_open()) {
    unpack_into(unnamed, from);
    if (unnamed.commit()) return;
  }
  AtomicFile named(to);
  unpack_into(named, from);
  named.commit();
}

}  // namespace

fs::path unpacked_file(const fs::path& path) {
  const ReadableFile file(path);
  if (!is_packed(file)) return path;
  fs::path to = path;
  to += fmt::format(".{:x}-{:x}{}", file.bytes(), file.changed_ns(), kUnpackedSuffix);
  std::error_code error;
  if (fs::is_regular_file(to, error)) return to;
  log::info("{} is a gzip file: it is unpacked once, to {}", path.string(), to.filename().string());
  const UnpackingLock lock(path);
  if (fs::is_regular_file(to, error)) return to;  // unpacked by another process meanwhile
  try {
    unpack(path, to);
  } catch (const IoError& unwritten) {
    throw IoError(
        fmt::format("{}; {} is a gzip file and must be unpacked in its folder: free space there and allow "
                    "writing, or unpack it with gunzip",
                    unwritten.what(), path.string()));
  }
  return to;
}

}  // namespace lockstep
