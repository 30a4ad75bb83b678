// SPDX-License-Identifier: Apache-2.0
//
// EventFile: numbers over steps as TensorBoard reads them, in a folder's events.out.tfevents.TIME.HOST. It is
// a sequence of TFRecords: the length of the payload (8 bytes, little-endian), a masked CRC-32C of these, the
// payload, and a masked CRC-32C of it; each payload is a protobuf tensorflow.Event {double wall_time = 1;
// int64 step = 2; string file_version = 3; Summary summary = 5}, and a Summary's values are {string tag = 1;
// float simple_value = 2}. The first Event has the file_version "brain.Event:2" alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

struct Scalar {
  std::string tag;  // "account/forward": what is before the last slash groups charts
  double value = 0;
};

// Of tags that are of single steps, in Events of their own.
inline constexpr std::string_view kSeriesPrefix = "step/";

class EventFile {
 public:
  // Without a file: what is added is dropped.
  EventFile() = default;
  // Of a run that begins: in the folder, which is made. What an earlier run left there is kept: the folder is
  // renamed (name_of_earlier). Throws IoError.
  static EventFile begin(const std::filesystem::path& folder);
  // Of a run that goes on: the folder's newest file, without what comes behind that step, or is damaged; a
  // new one where there is none. Events of single steps have a step of their own. Throws IoError.
  static EventFile continue_after(const std::filesystem::path& folder, std::int64_t step,
                                  std::int64_t step_of_series);

  // One Event, there whole or not at all. Returns 0, or the system's error. What is not finite is left out,
  // as TensorBoard has no place for it on an axis.
  int add(std::int64_t step, std::span<const Scalar> scalars) const;

  const std::filesystem::path& path() const { return path_; }  // empty: no file

 private:
  std::filesystem::path path_;
};

// A protobuf Event in its TFRecord, as add() writes it. wall_time: seconds since 1970.
std::string event_record(double wall_time, std::int64_t step, std::span<const Scalar> scalars);

}  // namespace lockstep
