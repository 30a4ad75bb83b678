// SPDX-License-Identifier: Apache-2.0
#include "data/containers/unpacked_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <zlib.h>

#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/files/crc32c.h"
#include "core/log.h"
#include "data/containers/split_files.h"
#include "data/formats/readable_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// A TFRecord file begins with the length of its first record, whose bytes may be those of gzip. The checksum
// of the length follows it.
bool is_packed(const ReadableFile& file) {
  char begin[sizeof(std::uint64_t) + sizeof(std::uint32_t)] = {};
  file.read(0, begin, std::min<std::size_t>(sizeof(begin), file.bytes()));
  const std::string_view length(begin, sizeof(std::uint64_t));
  if (!length.starts_with("\x1f\x8b")) return false;
  std::uint32_t crc = 0;
  std::memcpy(&crc, begin + length.size(), sizeof(crc));
  return masked_crc32c(length) != crc;
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

void unpack(const fs::path& from, const fs::path& to) {
  AtomicFile unpacked(to);
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
  unpacked.commit();
}

}  // namespace

fs::path unpacked_file(const fs::path& path) {
  const ReadableFile file(path);
  if (!is_packed(file)) return path;
  fs::path to = path;
  to += fmt::format(".{:x}-{:x}{}", file.bytes(), file.changed_ns(), kUnpackedSuffix);
  std::error_code error;
  if (fs::is_regular_file(to, error)) return to;
  log::info("{} is a gzip file: it is unpacked once, to {}{}", path.string(), to.filename().string(),
            earlier_copies(path, to));
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
