// SPDX-License-Identifier: Apache-2.0
#include "core/file_claim.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/host_name.h"
#include "core/log.h"
#include "core/printable.h"

namespace lockstep {
namespace {

constexpr int kHarmless = O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW;

std::string this_holder() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("process {} on {}, since {:%Y-%m-%d %H:%M:%S}", getpid(), host_name(),
                     fmt::localtime(now));
}

// Anybody may have written there.
std::string read_holder(int descriptor) {
  std::array<char, 256> text = {};
  const ssize_t got = pread(descriptor, text.data(), text.size(), 0);
  const std::string holder(text.data(), static_cast<std::size_t>(got < 0 ? 0 : got));
  const std::string line = printable(holder.substr(0, holder.find('\n')));
  return line.empty() ? "a process that has just started" : line;
}

// For people to read: nothing depends on it, so a full disk does not matter.
void write_holder(int descriptor, const std::filesystem::path& path) {
  const std::string text = this_holder() + "\n";
  if (ftruncate(descriptor, 0) != 0 || pwrite(descriptor, text.data(), text.size(), 0) < 0)
    log::debug("{} does not name this process: {}", path.string(), std::strerror(errno));
}

// Of a file that is there. Who may not write it may lock it.
int open_existing(const std::filesystem::path& path) {
  const int descriptor = open(path.c_str(), O_RDWR | kHarmless);
  return descriptor >= 0 || (errno != EACCES && errno != EROFS) ? descriptor
                                                                : open(path.c_str(), O_RDONLY | kHarmless);
}

// One that is there is not asked for with O_CREAT: in folders that everybody writes to, Linux refuses that to
// all but the file's owner.
int open_or_make(const std::filesystem::path& path, FileClaim::For users) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (const int found = open_existing(path); found >= 0 || errno != ENOENT) return found;
    const int made = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | kHarmless, 0666);
    if (made >= 0) {
      if (users == FileClaim::For::every_user && fchmod(made, 0666) != 0)
        log::debug("{}: {}", path.string(), std::strerror(errno));
      return made;
    }
    if (errno != EEXIST) return made;
  }
  return -1;
}

bool is_regular(int descriptor) {
  struct stat status = {};
  return fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
}

}  // namespace

FileClaim::FileClaim(const std::filesystem::path& path, For users) : descriptor_(open_or_make(path, users)) {
  if (descriptor_ < 0 || !is_regular(descriptor_)) {
    problem_ = descriptor_ < 0 ? std::strerror(errno) : "it is not a regular file";
    return;
  }
  if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0) {
    state_ = State::held;
    write_holder(descriptor_, path);
  } else if (errno == EWOULDBLOCK) {
    state_ = State::taken;
    holder_ = read_holder(descriptor_);
  } else {
    state_ = State::unlockable;
    problem_ = std::strerror(errno);
  }
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

std::optional<std::string> holder_of(const std::filesystem::path& path) {
  const int descriptor = open_existing(path);
  if (descriptor < 0) return std::nullopt;
  std::optional<std::string> holder;
  // Shared, so that those who ask do not take each other for holders.
  if (is_regular(descriptor) && flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    holder = read_holder(descriptor);
  close(descriptor);
  return holder;
}

}  // namespace lockstep
