// SPDX-License-Identifier: Apache-2.0
#include "launch/run_files/event_file.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "core/error.h"
#include "core/host_name.h"
#include "core/log.h"
#include "core/timeline.h"
#include "launch/run_files/run_folder.h"

namespace lockstep {
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";

// How many bytes of a file are whole records up to a step, or those of the series up to its own.
std::size_t bytes_up_to(std::string_view file, std::int64_t step, std::int64_t step_of_series) {
  std::size_t kept = 0;
  while (const auto event = first_event(file.substr(kept))) {
    const bool of_series = event->tag.starts_with(kSeriesPrefix) || event->tag.starts_with(kStartPrefix);
    if (event->step > (of_series ? step_of_series : step)) break;
    kept += event->bytes;
  }
  return kept;
}

std::filesystem::path create_file(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::filesystem::path path =
      folder / fmt::format("{}{:.0f}.{}", kPrefix, seconds_since_1970(), host_name());
  const int failed = error ? error.value() : append_whole(path, first_event_record(seconds_since_1970()));
  if (failed != 0) throw IoError(fmt::format("cannot create {}: {}", path.string(), std::strerror(failed)));
  return path;
}

// Empty: there is none.
std::filesystem::path newest_file(const std::filesystem::path& folder) {
  std::filesystem::path newest;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored))
    if (entry.path().filename().string().starts_with(kPrefix)) newest = std::max(newest, entry.path());
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
  file.path_ = create_file(folder);
  return file;
}

EventFile EventFile::continue_after(const std::filesystem::path& folder, std::int64_t step,
                                    std::int64_t step_of_series) {
  EventFile file;
  file.path_ = newest_file(folder);
  if (file.path_.empty()) return begin(folder);
  std::ifstream stream(file.path_, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  const std::size_t kept = bytes_up_to(bytes, step, step_of_series);
  if (!stream || kept == 0) return begin(folder);
  std::error_code error;
  if (kept < bytes.size()) std::filesystem::resize_file(file.path_, kept, error);
  if (error) throw IoError(fmt::format("cannot shorten {}: {}", file.path_.string(), error.message()));
  return file;
}

template <typename Told>
int EventFile::append(std::int64_t step, const Told& told) const {
  return path_.empty() ? 0 : append_whole(path_, event_record(seconds_since_1970(), step, told));
}

int EventFile::add(std::int64_t step, std::span<const Scalar> scalars) const { return append(step, scalars); }

int EventFile::add(std::int64_t step, std::span<const Histogram> histograms) const {
  return append(step, histograms);
}

int EventFile::add(std::int64_t step, const EventText& text) const { return append(step, text); }

}  // namespace lockstep
