// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/tensorboard/event_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "core/error.h"
#include "core/log.h"
#include "core/system/host_name.h"
#include "launch/observe/run_files/run_folder.h"

namespace lockstep {
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";

// Readers sort files by name, so the time in the name is later than that of `before`, even if the clock was
// set back.
std::filesystem::path create_file(const std::filesystem::path& folder, const std::filesystem::path& before) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::int64_t second = std::llround(seconds_since_1970());
  std::int64_t other = 0;
  const std::string name = before.filename().string();
  if (!name.empty()) std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), other);
  std::filesystem::path path =
      folder / fmt::format("{}{}.{}", kPrefix, std::max(second, other + 1), host_name());
  const int failed = error ? error.value() : append_whole(path, first_event_record(seconds_since_1970()));
  if (failed != 0) throw IoError(fmt::format("cannot create {}: {}", path.string(), std::strerror(failed)));
  return path;
}

// Ignores entries that are not regular files. Returns an empty path if there is no such file.
std::filesystem::path newest_file(const std::filesystem::path& folder) {
  std::filesystem::path newest;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored))
    if (entry.path().filename().string().starts_with(kPrefix) &&
        std::filesystem::is_regular_file(entry.symlink_status(ignored)))
      newest = std::max(newest, entry.path());
  return newest;
}

}  // namespace

EventFile EventFile::begin(const std::filesystem::path& folder) {
  if (!newest_file(folder).empty()) {
    std::error_code error;
    std::filesystem::rename(folder, name_of_earlier(folder), error);
    if (error) throw IoError(fmt::format("cannot rename {}: {}", folder.string(), error.message()));
  }
  EventFile file;
  file.path_ = create_file(folder, {});
  return file;
}

EventFile EventFile::continue_after(const std::filesystem::path& folder, std::int64_t step) {
  const std::filesystem::path before = newest_file(folder);
  if (before.empty()) return begin(folder);
  EventFile file;
  file.path_ = create_file(folder, before);
  const int failed = append_whole(file.path_, start_record(seconds_since_1970(), step + 1));
  if (failed != 0)
    throw IoError(fmt::format("cannot write {}: {}", file.path_.string(), std::strerror(failed)));
  return file;
}

int EventFile::append(std::string_view record) const { return append_whole(path_, record); }

}  // namespace lockstep
