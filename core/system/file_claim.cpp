// SPDX-License-Identifier: Apache-2.0
#include "core/system/file_claim.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/log.h"
#include "core/system/host_name.h"
#include "core/system/printable.h"

namespace lockstep {
namespace {

constexpr int kHarmless = O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW;

std::string this_holder() {
  return fmt::format("process {} on {}, since {:%Y-%m-%d %H:%M:%S}", getpid(), host_name(),
                     fmt::localtime(std::time(nullptr)));
}

// Untrusted text: any user may have written it.
std::string read_holder(int descriptor) {
  std::array<char, 256> text = {};
  const ssize_t got = pread(descriptor, text.data(), text.size(), 0);
  const std::string holder(text.data(), static_cast<std::size_t>(got < 0 ? 0 : got));
  const std::string line = printable(holder.substr(0, holder.find('\n')));
  return line.empty() ? "a process that has not written its name yet" : line;
}

// The name is for users only: a failed write does not affect the claim.
void write_holder(int descriptor, const std::filesystem::path& path) {
  const std::string text = this_holder() + "\n";
  if (ftruncate(descriptor, 0) != 0 || pwrite(descriptor, text.data(), text.size(), 0) < 0)
    log::debug("{}: cannot write the name of this process: {}", path.string(), std::strerror(errno));
}

bool is_regular(const struct stat& status) { return S_ISREG(status.st_mode); }

struct stat status_of(int descriptor) {
  struct stat status = {};
  if (fstat(descriptor, &status) != 0) status = {};
  return status;
}

bool is_at(const std::filesystem::path& path, int descriptor) {
  struct stat there = {};
  const struct stat status = status_of(descriptor);
  return lstat(path.c_str(), &there) == 0 && there.st_dev == status.st_dev && there.st_ino == status.st_ino;
}

// Opens an existing file. With By::readers a user without write permission may lock it, too.
int open_existing(const std::filesystem::path& path, FileClaim::By who) {
  const int descriptor = open(path.c_str(), O_RDWR | kHarmless);
  const bool unwritable = descriptor < 0 && (errno == EACCES || errno == EROFS);
  return unwritable && who == FileClaim::By::readers ? open(path.c_str(), O_RDONLY | kHarmless) : descriptor;
}

// Does not open an existing file with O_CREAT: in sticky folders that everybody can write to, Linux refuses
// that to all users but the file's owner (fs.protected_regular).
int open_or_make(const std::filesystem::path& path, FileClaim::By who) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (const int found = open_existing(path, who); found >= 0 || errno != ENOENT) return found;
    const int made = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | kHarmless, 0666);
    if (made >= 0) {
      if (who == FileClaim::By::owner && fchmod(made, 0644) != 0)
        log::debug("{}: cannot set the mode to 0644: {}", path.string(), std::strerror(errno));
      return made;
    }
    if (errno != EEXIST) return made;
  }
  return -1;
}

struct flock whole_file(int type) {
  struct flock lock = {};
  lock.l_type = static_cast<short>(type);
  lock.l_whence = SEEK_SET;
  return lock;
}

// True if the file has a write lock. Setting one needs write permission for the file.
bool is_held(int descriptor) {
  struct flock lock = whole_file(F_RDLCK);
  return fcntl(descriptor, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_WRLCK;
}

FileClaim::State lock_as_reader(int descriptor) {
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return FileClaim::State::held;
  return errno == EWOULDBLOCK ? FileClaim::State::taken : FileClaim::State::unlockable;
}

FileClaim::State lock_as_owner(int descriptor) {
  struct flock lock = whole_file(F_WRLCK);
  if (fcntl(descriptor, F_OFD_SETLK, &lock) == 0) return FileClaim::State::held;
  return errno == EAGAIN || errno == EACCES ? FileClaim::State::taken : FileClaim::State::unlockable;
}

}  // namespace

FileClaim::FileClaim(const std::filesystem::path& path, By who) {
  constexpr int kMostFiles = 8;
  for (int attempt = 0; attempt < kMostFiles; ++attempt) {
    if (descriptor_ >= 0) close(descriptor_);
    state_ = State::unopened;
    descriptor_ = open_or_make(path, who);
    if (descriptor_ < 0) {
      problem_ = std::strerror(errno);
      return;
    }
    const struct stat status = status_of(descriptor_);
    if (!is_regular(status)) {
      problem_ = "it is not a regular file";
      return;
    }
    if (who == By::owner && status.st_uid != geteuid()) {
      problem_ = fmt::format("it belongs to user {}", status.st_uid);
      return;
    }
    state_ = who == By::owner ? lock_as_owner(descriptor_) : lock_as_reader(descriptor_);
    if (state_ == State::unlockable) problem_ = std::strerror(errno);
    const bool replaced = who == By::owner && state_ == State::held && !is_at(path, descriptor_);
    // Another user may hold a read lock, which Lockstep never sets. A new file then replaces this one.
    const bool in_the_way = who == By::owner && state_ == State::taken && !is_held(descriptor_);
    if (in_the_way && is_at(path, descriptor_)) unlink(path.c_str());
    if (replaced || in_the_way) continue;
    if (state_ == State::held) write_holder(descriptor_, path);
    if (state_ == State::taken) holder_ = read_holder(descriptor_);
    return;
  }
  state_ = State::unlockable;
  problem_ = "other processes replace it or hold read locks on it";
}

FileClaim::~FileClaim() {
  if (descriptor_ >= 0) close(descriptor_);
}

FileClaim::FileClaim(FileClaim&& other) noexcept
    : state_(std::exchange(other.state_, State::unopened)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      holder_(std::move(other.holder_)),
      problem_(std::move(other.problem_)) {}

FileClaim& FileClaim::operator=(FileClaim&& other) noexcept {
  std::swap(state_, other.state_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(holder_, other.holder_);
  std::swap(problem_, other.problem_);
  return *this;
}

std::optional<std::string> holder_of(const std::filesystem::path& path, uid_t owner) {
  const int descriptor = open(path.c_str(), O_RDONLY | kHarmless);
  if (descriptor < 0) return std::nullopt;
  const struct stat status = status_of(descriptor);
  std::optional<std::string> holder;
  if (is_regular(status) && status.st_uid == owner && is_held(descriptor)) holder = read_holder(descriptor);
  close(descriptor);
  return holder;
}

int create_locked_file(const std::filesystem::path& path, std::size_t bytes, int lock) {
  const int descriptor =
      open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
  if (descriptor < 0) return -1;
  ::flock(descriptor, lock | LOCK_NB);
  // Allocates the memory now: without it a later store to a mapping would raise SIGBUS.
  const int reason = posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
  if (reason == 0) return descriptor;
  unlink(path.c_str());
  close(descriptor);
  errno = reason;
  return -1;
}

}  // namespace lockstep
