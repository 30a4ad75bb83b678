// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/run_files/run_folder.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/log.h"
#include "launch/observe/run_files/event_command.h"
#include "launch/train/checkpoint/plain_file.h"

namespace lockstep {
namespace {

[[noreturn]] void throw_io(const std::string& what, const std::filesystem::path& path, int error) {
  throw IoError(fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(error)));
}

void create_empty(const std::filesystem::path& file) {
  if (const int error = append_whole(file, "")) throw_io("create", file, error);
}

constexpr const char* kMetricsFile = "metrics.jsonl";
constexpr const char* kStepsFile = "steps.jsonl";
constexpr const char* kEventsFile = "events.jsonl";
constexpr const char* kEvaluationsFile = "evaluations.jsonl";
constexpr std::uint64_t kMostLinesBytes = std::uint64_t{16} << 30;

// The integer after the first `name` in a complete line; 0 for other lines.
std::int64_t number_after(std::string_view name, const std::string& line) {
  std::int64_t number = 0;
  const std::size_t at = line.find(name);
  if (line.starts_with('{') && line.ends_with('}') && at != std::string::npos)
    std::from_chars(line.data() + at + name.size(), line.data() + line.size(), number);
  return number;
}
std::int64_t epoch_of(const std::string& line) { return number_after("{\"epoch\":", line); }
std::int64_t step_of(const std::string& line) { return number_after(",\"step\":", line); }

// Drops lines for which keeps() is false or that lack a line break. If there are any, copies the file first.
void keep_lines(const std::filesystem::path& path, const std::function<bool(const std::string&)>& keeps) {
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, error))) return;
  std::istringstream file(read_plain_file(path, kMostLinesBytes));
  std::string kept;
  bool all = true;
  for (std::string line; std::getline(file, line);) {
    const bool keep = !file.eof() && keeps(line);
    if (keep) kept += line + '\n';
    all = all && keep;
  }
  if (all) return;
  const std::filesystem::path earlier = name_of_earlier(path);
  std::filesystem::copy_file(path, earlier, error);
  if (error) throw_io("copy the earlier run's file", path, error.value());
  write_atomically(path, kept, Links::replace);
  log::info(
      "removed the lines after the checkpoint from {}, because training repeats their steps; {} has all "
      "lines",
      path.filename().string(), earlier.string());
}

// Keeps the lines whose numbers ascend from 1, up to `most`.
void keep_ascending(const std::filesystem::path& path, std::int64_t (*number_of)(const std::string&),
                    std::int64_t most) {
  std::int64_t last = 0;
  keep_lines(path, [&](const std::string& line) {
    const std::int64_t number = number_of(line);
    const bool keep = number > last && number <= most;
    if (keep) last = number;
    return keep;
  });
}

// Removes the temporaries of AtomicFile for the files that only the holder of the lock writes.
void remove_temporaries(const std::filesystem::path& folder) {
  constexpr std::string_view kFiles[] = {kBestFile,   kLastGoodFile,    kMetricsFile,  kStepsFile,
                                         kEventsFile, kEvaluationsFile, "config.toml", "run.json"};
  std::error_code error;
  for (std::filesystem::directory_iterator each(folder, error), end; !error && each != end;
       each.increment(error)) {
    const std::string name = each->path().filename().string();
    const std::size_t mark = name.find(kPartialMark);
    if (mark == name.npos || std::ranges::find(kFiles, name.substr(0, mark)) == std::end(kFiles)) continue;
    std::error_code ignored;
    std::filesystem::remove(each->path(), ignored);
  }
}

FileClaim claim_run_folder(const std::filesystem::path& folder, std::chrono::milliseconds patience) {
  using Clock = std::chrono::steady_clock;
  create_folder(folder);
  const auto claimed = [&] { return FileClaim(folder / "run.lock", FileClaim::By::readers); };
  FileClaim claim = claimed();
  if (claim.state() != FileClaim::State::taken || patience.count() == 0) return claim;
  log::info("run.dir {} is in use by another job ({}); waiting up to {} s until that job ends",
            folder.string(), claim.holder(), std::chrono::ceil<std::chrono::seconds>(patience).count());
  const auto deadline = Clock::now() + patience;
  while (claim.state() == FileClaim::State::taken && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    claim = claimed();
  }
  return claim;
}

}  // namespace

void create_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw_io("create the folder", folder, error.value());
}

std::filesystem::path name_of_earlier(const std::filesystem::path& path) {
  std::error_code error;
  int number = 1;
  const auto name = [&] {
    return path.parent_path() /
           fmt::format("{}.{}{}", path.stem().string(), number, path.extension().string());
  };
  while (std::filesystem::exists(std::filesystem::symlink_status(name(), error))) ++number;
  return name();
}

void set_aside(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status found = std::filesystem::symlink_status(path, error);
  if (!std::filesystem::is_regular_file(found) && !std::filesystem::is_symlink(found)) return;
  if (std::filesystem::is_regular_file(found) && std::filesystem::file_size(path, error) == 0) return;
  const std::filesystem::path earlier = name_of_earlier(path);
  std::filesystem::rename(path, earlier, error);
  if (error) throw_io("rename the earlier run's file", path, error.value());
  log::info("renamed {} of an earlier run to {}", path.filename().string(), earlier.string());
}

int append_whole(const std::filesystem::path& path, std::string_view bytes) {
  const int descriptor =
      open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
  if (descriptor < 0) return errno;
  struct stat before = {};
  const bool known = fstat(descriptor, &before) == 0;
  int error = known ? 0 : errno;
  for (std::size_t done = 0; error == 0 && done < bytes.size();) {
    const ssize_t written = write(descriptor, bytes.data() + done, bytes.size() - done);
    if (written >= 0)
      done += static_cast<std::size_t>(written);
    else if (errno != EINTR)
      error = errno;
  }
  const auto restore_size = [&](int file) {
    if (file < 0 || ftruncate(file, before.st_size) != 0)
      log::debug("{} ends with a lost record that cannot be removed", path.string());
  };
  if (error != 0 && known) restore_size(descriptor);
  if (close(descriptor) != 0 && error == 0) {  // NFS may report a full disk only here
    error = errno;
    const int again = open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    restore_size(again);
    if (again >= 0) close(again);
  }
  return error;
}

RunLock::RunLock(const std::filesystem::path& folder, std::chrono::milliseconds patience)
    : claim_(claim_run_folder(folder, patience)) {
  switch (claim_.state()) {
    case FileClaim::State::held:
      remove_temporaries(folder);
      return;
    case FileClaim::State::taken:
      if (patience.count() > 0) {
        throw Error(exit_code::resumable,
                    fmt::format("run.dir {} is still in use by another job ({}); when that job has ended, "
                                "the same command resumes its training",
                                folder.string(), claim_.holder()));
      }
      throw ConfigError(
          fmt::format("run.dir {} is in use by another job ({}); wait until that job ends, or choose another "
                      "folder: --set run.dir=...",
                      folder.string(), claim_.holder()));
    case FileClaim::State::unlockable:
      log::warning("cannot lock {} ({}): make sure that no other job writes to this folder", folder.string(),
                   claim_.problem());
      return;
    case FileClaim::State::unopened:
      throw IoError(fmt::format("cannot create {}: {}", (folder / "run.lock").string(), claim_.problem()));
  }
}

void begin_metrics(const std::filesystem::path& folder) {
  create_folder(folder);
  for (const char* name : {kEventsFile, kEventCommandLog, kEvaluationsFile, kBestFile, kLastGoodFile})
    set_aside(folder / name);
  for (const char* name : {kMetricsFile, kStepsFile}) {
    set_aside(folder / name);
    create_empty(folder / name);
  }
}

void continue_metrics(const std::filesystem::path& folder, std::int64_t epochs, bool partial) {
  create_folder(folder);
  std::error_code unknown;
  if (!std::filesystem::exists(std::filesystem::symlink_status(folder / kMetricsFile, unknown)))
    return create_empty(folder / kMetricsFile);
  keep_ascending(folder / kMetricsFile, epoch_of, epochs + (partial ? 1 : 0));
}

void continue_steps(const std::filesystem::path& folder, std::int64_t steps) {
  create_folder(folder);
  for (const char* name : {kStepsFile, kEventsFile}) keep_ascending(folder / name, step_of, steps);
  // A checkpoint after a step is saved before the evaluation of that step, which is repeated.
  keep_lines(folder / kEvaluationsFile, [&](const std::string& line) { return step_of(line) < steps; });
}

}  // namespace lockstep
