// SPDX-License-Identifier: Apache-2.0
//
// Encodes events as TensorBoard reads them. Each is a TFRecord: the length of the payload (8 bytes,
// little-endian), a masked CRC-32C of these, the payload, and a masked CRC-32C of it. The payload is a
// protobuf tensorflow.Event {double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary =
// 5; SessionLog session_log = 7}. A Summary's values are {string tag = 1}, with one of
//   float simple_value = 2                        a scalar
//   HistogramProto histo = 5                      a histogram
//   SummaryMetadata metadata = 9, TensorProto tensor = 8   a text, of the plugin "text"
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

struct Scalar {
  std::string tag;  // "account/forward": the part before the last slash groups charts
  double value = 0;
};

// A distribution of values: counts[i] of them are at least limits[i - 1] and below limits[i]. The first bin
// begins at min, and the last one includes its limit, max.
struct Histogram {
  std::string tag;
  double min = 0, max = 0, sum = 0, sum_of_squares = 0;
  std::int64_t values = 0;
  std::vector<double> limits;
  std::vector<double> counts;
};

// A text that TensorBoard shows as Markdown.
struct EventText {
  std::string tag;
  std::string markdown;
};

// wall_time: seconds since 1970. Omits scalars that are not finite as a float: TensorBoard cannot place them
// on an axis.
std::string event_record(double wall_time, std::int64_t step, std::span<const Scalar> scalars);
std::string event_record(double wall_time, std::int64_t step, std::span<const Histogram> histograms);
std::string event_record(double wall_time, std::int64_t step, const EventText& text);
// The first record of a file.
std::string first_event_record(double wall_time);

// Marks a start of the run: readers drop events of earlier files from this step on.
std::string start_record(double wall_time, std::int64_t step);

}  // namespace lockstep
