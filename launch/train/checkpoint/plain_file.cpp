// SPDX-License-Identifier: Apache-2.0
#include "launch/train/checkpoint/plain_file.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"

namespace lockstep {
namespace {

[[noreturn]] void cannot_read(const std::filesystem::path& path, int error) {
  throw IoError(fmt::format("{}: cannot be read: {}", path.string(), std::strerror(error)));
}

}  // namespace

std::uint64_t plain_file_bytes(const std::filesystem::path& path) {
  struct stat status = {};
  if (lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR)
      throw DataError(fmt::format("{}: does not exist", path.string()));
    cannot_read(path, errno);
  }
  if (!S_ISREG(status.st_mode)) throw DataError(fmt::format("{}: is not a regular file", path.string()));
  return static_cast<std::uint64_t>(status.st_size);
}

std::string read_plain_file(const std::filesystem::path& path, std::uint64_t most) {
  plain_file_bytes(path);  // throws if it is not a regular file
  const int descriptor = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) cannot_read(path, errno);
  struct stat status = {};
  const bool regular = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  std::string text(regular && bytes <= most ? bytes : 0, '\0');
  std::size_t done = 0;
  int error = 0;
  while (done < text.size()) {
    const ssize_t got = ::read(descriptor, text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) error = errno;
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  close(descriptor);
  if (!regular) throw DataError(fmt::format("{}: is not a regular file", path.string()));
  if (bytes > most)
    throw DataError(fmt::format("{}: has {} bytes, the limit is {} bytes", path.string(), bytes, most));
  if (error != 0) cannot_read(path, error);
  text.resize(done);
  return text;
}

}  // namespace lockstep
