// SPDX-License-Identifier: Apache-2.0
#include "core/files/atomic_file.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <random>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLinks = 100;  // symbolic links that are followed on one path

// With the mark and the number, a longer name may exceed the limit of a file system (143 bytes or more).
constexpr std::size_t kLongestNameBytes = 100;

// Random, because a process on another node that shares the folder can have the same process id.
fs::path temporary_for(const fs::path& target) {
  std::random_device random;
  const std::uint64_t number = std::uint64_t{random()} << 32 | random();
  const std::string name = target.filename().string();
  return target.parent_path() / fmt::format("{}{}{:016x}",
                                            name.size() > kLongestNameBytes ? ".lockstep" : name,
                                            kPartialMark, number);
}

// -1 if the folder's file system has no such files. Linux before 6.0 may ignore the umask; a file that others
// could write is not used.
int open_unnamed(const fs::path& folder) {
  const int descriptor = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
  struct stat status {};
  if (descriptor < 0 || (fstat(descriptor, &status) == 0 && (status.st_mode & S_IWOTH) == 0))
    return descriptor;
  close(descriptor);
  return -1;
}

int create_new(const fs::path& file) {
  return open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

// False for the error of a file system that does not support the call.
bool is_disk_error(int error) { return error == EIO || error == ENOSPC || error == EDQUOT; }

void sync_path(const fs::path& path, int flags) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (descriptor < 0) return;
  const int error = fsync(descriptor) == 0 ? 0 : errno;
  close(descriptor);
  if (is_disk_error(error))
    throw IoError(fmt::format("{}: cannot be written: {}", path.string(), std::strerror(error)));
}

// True for a link that Linux refuses to follow if fs.protected_symlinks is set. Reading the link bypasses
// that check.
bool is_anothers_trap(const fs::path& link) {
  struct stat own = {}, folder = {};
  if (lstat(link.c_str(), &own) != 0 || !S_ISLNK(own.st_mode)) return false;
  if (stat(link.parent_path().c_str(), &folder) != 0) return false;
  const bool everybodys = (folder.st_mode & S_ISVTX) != 0 && (folder.st_mode & S_IWOTH) != 0;
  return everybodys && own.st_uid != geteuid() && own.st_uid != folder.st_uid;
}

// True if a symbolic link on the absolute path is_anothers_trap(), or if the path has more than `left` links;
// `left` is then below 0.
bool leads_through_trap(const fs::path& path, int& left) {
  fs::path way;
  for (const fs::path& part : path) {
    way /= part;
    std::error_code error;
    if (!fs::is_symlink(fs::symlink_status(way, error))) continue;
    if (--left < 0 || is_anothers_trap(way)) return true;
    const fs::path to = fs::read_symlink(way, error);
    if (!error && leads_through_trap(way.parent_path() / to, left)) return true;
  }
  return false;
}

// The path that symbolic links at this path lead to, even if it does not exist.
fs::path end_of_links(fs::path path) {
  std::error_code error;
  for (int links = 0; links < kMostLinks && fs::is_symlink(fs::symlink_status(path, error)); ++links)
    path = path.parent_path() / fs::read_symlink(path, error);
  return path;
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& path, Links links, Durable durable) : path_(path), durable_(durable) {
  std::error_code error;
  const fs::path whole = fs::absolute(path, error);
  if (error) fail(error.value());
  int links_left = kMostLinks;
  if (leads_through_trap(links == Links::replace ? whole.parent_path() : whole, links_left)) {
    if (links_left < 0) fail(ELOOP);
    throw IoError(
        fmt::format("{}: cannot be written: the path contains another user's symbolic link in a "
                    "world-writable folder; use a path without this link",
                    path.string()));
  }
  const bool replaces_link = links == Links::replace && fs::is_symlink(fs::symlink_status(whole, error));
  if (!replaces_link) {
    const fs::file_status status = fs::status(whole, error);
    if (error == std::errc::filename_too_long) fail(ENAMETOOLONG);  // the temporary's name may be shorter
    if (fs::exists(status) && !fs::is_regular_file(status)) {
      // Not through canonical(): the links of /proc to pipes lead to no path.
      descriptor_ = open(whole.c_str(), O_WRONLY | O_CLOEXEC);
      if (descriptor_ < 0) fail(errno);
      return;
    }
  }
  target_ = replaces_link ? whole : fs::canonical(whole, error);
  if (error) target_ = end_of_links(whole);  // the file does not exist yet
  temporary_ = temporary_for(target_);
  if (durable_ == Durable::yes) descriptor_ = open_unnamed(target_.parent_path());
  unnamed_ = descriptor_ >= 0;
  if (!unnamed_) descriptor_ = create_new(temporary_);
  if (descriptor_ < 0) fail(errno);
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
  CHECK(descriptor_ >= 0, "{} is already committed", path_.string());
  if (unnamed_) name_temporary();
  // fsync() comes after the name, because Btrfs does not sync an unnamed file.
  if (durable_ == Durable::yes && !temporary_.empty() && fsync(descriptor_) != 0) fail(errno);
  if (close(std::exchange(descriptor_, -1)) != 0) fail(errno);
  if (temporary_.empty()) return;
  if (rename(temporary_.c_str(), target_.c_str()) != 0) fail(errno);
  temporary_.clear();
  removed_at_end_.reset();
  // The new name is durable only after the folder is on disk.
  if (durable_ == Durable::yes) sync_folder(target_.parent_path());
}

void AtomicFile::name_temporary() {
  // The system still removes the file of a killed process while this writes the data, unlike during fsync().
  if (sync_file_range(descriptor_, 0, 0, SYNC_FILE_RANGE_WRITE_AND_WAIT) != 0 && is_disk_error(errno))
    fail(errno);
  const std::string unnamed = fmt::format("/proc/self/fd/{}", descriptor_);
  if (linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) == 0) return;
  // Copies a file that the system cannot name, for example because /proc is not mounted.
  const int named = create_new(temporary_);
  if (named < 0) fail(errno);
  off_t at = 0;
  ssize_t copied = 0;
  do {
    copied = sendfile(named, descriptor_, &at, std::size_t{1} << 30);
  } while (copied > 0 || (copied < 0 && errno == EINTR));
  const int error = errno;
  close(std::exchange(descriptor_, named));
  if (copied < 0) fail(error);
}

void AtomicFile::fail(int error) const {
  throw IoError(fmt::format("{}: cannot be written: {}", path_.string(), std::strerror(error)));
}

void sync_folder(const fs::path& folder) { sync_path(folder, O_DIRECTORY); }

void sync_file(const fs::path& file) { sync_path(file, O_NOFOLLOW | O_NONBLOCK); }

void write_atomically(const fs::path& path, std::string_view text, Links links, Durable durable) {
  AtomicFile file(path, links, durable);
  file.write(text);
  file.commit();
}

}  // namespace lockstep
