// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/run_files/line_journal.h"

#include <cerrno>
#include <cstring>
#include <sstream>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log.h"
#include "launch/observe/run_files/run_folder.h"
#include "launch/train/checkpoint/plain_file.h"

namespace lockstep {
namespace {

// Returns an empty text where the file does not exist.
std::string text_of_journal(const std::filesystem::path& path) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;
  std::error_code unknown;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, unknown))) return {};
  return read_plain_file(path, kMostBytes);
}

[[noreturn]] void cannot_write_journal(const std::filesystem::path& path, const std::string& why) {
  throw IoError(fmt::format("cannot write {}: {}", path.string(), why));
}

}  // namespace

LineJournal::LineJournal(std::filesystem::path path) : path_(std::move(path)) {
  const std::string text = text_of_journal(path_);
  const std::size_t end = text.rfind('\n');
  whole_bytes_ = end == std::string::npos ? 0 : end + 1;
  cut_off_ = whole_bytes_ < text.size();
  std::istringstream lines(text.substr(0, whole_bytes_));
  for (std::string line; std::getline(lines, line);) found_.push_back(line);
}

void LineJournal::drop_cut_off_line() const {
  if (!cut_off_) return;
  std::error_code error;
  std::filesystem::resize_file(path_, whole_bytes_, error);
  if (error) cannot_write_journal(path_, error.message());
}

void LineJournal::add(const std::string& line) const {
  if (const int error = append_whole(path_, line + '\n')) cannot_write_journal(path_, std::strerror(error));
  const int file = open(path_.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
  const int failed = file >= 0 && fsync(file) == 0 ? 0 : errno;
  // Some file systems do not support fsync.
  const bool lost = failed != 0 && failed != EINVAL && failed != ENOTSUP;
  // Removes the line: the caller may add it again.
  struct stat status = {};
  if (lost && (file < 0 || fstat(file, &status) != 0 ||
               ftruncate(file, status.st_size - static_cast<off_t>(line.size() + 1)) != 0))
    log::debug("{} ends with a line that may not be on disk and cannot be removed", path_.string());
  if (file >= 0) close(file);
  if (lost) cannot_write_journal(path_, std::strerror(failed));
}

}  // namespace lockstep
