// SPDX-License-Identifier: Apache-2.0
//
// EventFile: what a run tells TensorBoard, in a folder's events.out.tfevents.TIME.HOST: events
// (launch/run_files/event_record.h), one behind the other. The first has the file's version alone. Each start
// of a run writes a new file. No file is ever shortened, because a reader may have it open.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "launch/run_files/event_record.h"

namespace lockstep {

// Of tags that are of single steps, in Events of their own.
inline constexpr std::string_view kSeriesPrefix = "step/";
// Of tags of texts, which tell of a start of the run.
inline constexpr std::string_view kStartPrefix = "run/";

class EventFile {
 public:
  // Without a file: what is added is dropped.
  EventFile() = default;
  // Of a run that begins: in the folder, which is made. What an earlier run left there is kept: the folder is
  // renamed (name_of_earlier). Throws IoError.
  static EventFile begin(const std::filesystem::path& folder);
  // Resumes a run after that step: writes a new file, which makes readers drop later steps of the folder's
  // other files. Throws IoError.
  static EventFile continue_after(const std::filesystem::path& folder, std::int64_t step);

  // One event, there whole or not at all. Returns 0, or the system's error.
  int add(std::int64_t step, std::span<const Scalar> scalars) const;
  int add(std::int64_t step, std::span<const Histogram> histograms) const;
  int add(std::int64_t step, const EventText& text) const;

  const std::filesystem::path& path() const { return path_; }  // empty: no file

 private:
  template <typename Told>
  int append(std::int64_t step, const Told& told) const;

  std::filesystem::path path_;
};

}  // namespace lockstep
