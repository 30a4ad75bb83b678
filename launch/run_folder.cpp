// SPDX-License-Identifier: Apache-2.0
#include "launch/run_folder.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/atomic_file.h"
#include "core/error.h"
#include "core/host_name.h"
#include "core/log.h"

namespace lockstep {
namespace {

[[noreturn]] void throw_io(const std::string& what, const std::filesystem::path& path, int error) {
  throw IoError(fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(error)));
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw_io("create the run's directory", folder, error.value());
}

std::string this_job() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("process {} on {}, since {:%Y-%m-%d %H:%M:%S}", getpid(), host_name(),
                     fmt::localtime(now));
}

// Empty when the holder has not written it yet.
std::string read_holder(int descriptor) {
  std::array<char, 512> text = {};
  const ssize_t got = pread(descriptor, text.data(), text.size(), 0);
  std::string holder(text.data(), static_cast<std::size_t>(got < 0 ? 0 : got));
  return holder.substr(0, holder.find('\n'));
}

// For people to read: nothing depends on it, so a full disk does not matter.
void write_holder(int descriptor) {
  const std::string text = this_job() + "\n";
  if (ftruncate(descriptor, 0) != 0 || pwrite(descriptor, text.data(), text.size(), 0) < 0)
    log::debug("run.lock does not name this job: {}", std::strerror(errno));
}

// For the metrics of an earlier run.
std::filesystem::path free_name(const std::filesystem::path& folder) {
  std::error_code error;
  int number = 1;
  const auto name = [&] { return folder / fmt::format("metrics.{}.jsonl", number); };
  while (std::filesystem::exists(name(), error)) ++number;
  return name();
}

// Of a line of metrics.jsonl; 0 where it is none.
std::int64_t epoch_of(const std::string& line) {
  constexpr std::string_view kStart = "{\"epoch\":";
  if (!line.starts_with(kStart) || !line.ends_with('}')) return 0;
  std::int64_t epoch = 0;
  std::from_chars(line.data() + kStart.size(), line.data() + line.size(), epoch);
  return epoch;
}

}  // namespace

RunLock::RunLock(const std::filesystem::path& folder) {
  make_folder(folder);
  const std::filesystem::path path = folder / "run.lock";
  descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw_io("create", path, errno);
  const int error = flock(descriptor_, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
  if (error == 0) {
    write_holder(descriptor_);
  } else if (error == EWOULDBLOCK) {
    const std::string holder = read_holder(descriptor_);
    close(descriptor_);
    throw ConfigError(fmt::format(
        "run.dir {} is in use by another job ({}); wait for its end, or give this one a folder of "
        "its own: --set run.dir=...",
        folder.string(), holder.empty() ? "which has just started" : holder));
  } else {
    log::warning("{} cannot be locked ({}): see that no other job writes there", folder.string(),
                 std::strerror(error));
  }
}

RunLock::~RunLock() { close(descriptor_); }

void begin_metrics(const std::filesystem::path& folder) {
  make_folder(folder);
  const std::filesystem::path path = folder / "metrics.jsonl";
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error) && std::filesystem::file_size(path, error) > 0) {
    const std::filesystem::path earlier = free_name(folder);
    std::filesystem::rename(path, earlier, error);
    if (error) throw_io("rename the metrics of an earlier run,", path, error.value());
    log::info("{} holds the metrics of the run before this one", earlier.string());
  }
  errno = 0;
  if (!std::ofstream(path, std::ios::app)) throw_io("create", path, errno);
}

void continue_metrics(const std::filesystem::path& folder, std::int64_t epochs, bool partial) {
  make_folder(folder);
  const std::filesystem::path path = folder / "metrics.jsonl";
  std::ifstream file(path, std::ios::binary);
  if (!file) return begin_metrics(folder);
  std::string kept;
  bool all = true;
  std::int64_t last = 0;
  for (std::string line; std::getline(file, line);) {
    const std::int64_t epoch = epoch_of(line);
    const bool keep = !file.eof() && epoch == last + 1 && epoch <= epochs + (partial ? 1 : 0);
    if (keep) kept += line + '\n';
    if (keep) last = epoch;
    all = all && keep;
  }
  if (file.bad()) throw_io("read", path, errno);
  if (all) return;
  const std::filesystem::path earlier = free_name(folder);
  std::error_code error;
  std::filesystem::copy_file(path, earlier, error);
  if (error) throw_io("copy the metrics of an earlier run,", path, error.value());
  write_atomically(path, kept);
  log::info("{} holds the metrics as they were: what comes after the checkpoint is trained again",
            earlier.string());
}

}  // namespace lockstep
