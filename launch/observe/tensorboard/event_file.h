// SPDX-License-Identifier: Apache-2.0
//
// EventFile: a run's events for TensorBoard (launch/observe/tensorboard/event_record.h), appended to the file
// events.out.tfevents.TIME.HOST of a folder. The first event has only the file's version. Each start of a run
// writes a new file. No file of an earlier start is shortened, because a reader may have it open.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "core/timeline.h"
#include "launch/observe/tensorboard/event_record.h"

namespace lockstep {

class EventFile {
 public:
  // Has no file: add() drops events and returns 0.
  EventFile() = default;
  // Begins a new run: creates the folder and a file in it. Renames a folder with files of an earlier run
  // (name_of_earlier). Throws IoError.
  static EventFile begin(const std::filesystem::path& folder);
  // Resumes a run after that step: writes a new file, which makes readers drop later steps of the folder's
  // other files. Throws IoError.
  static EventFile continue_after(const std::filesystem::path& folder, std::int64_t step);

  // Appends one event, whole or not at all. content: scalars, histograms or a text, for event_record().
  // Returns 0 or an errno value.
  template <typename Content>
  int add(std::int64_t step, const Content& content) const {
    return path_.empty() ? 0 : append(event_record(seconds_since_1970(), step, content));
  }

  const std::filesystem::path& path() const { return path_; }  // empty: no file

 private:
  int append(std::string_view record) const;

  std::filesystem::path path_;
};

}  // namespace lockstep
