// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/tensorboard/event_record.h"

#include <bit>
#include <cmath>

#include "core/files/crc32c.h"

namespace lockstep {
namespace {

constexpr std::string_view kFileVersion = "brain.Event:2";
// tensorflow.SessionLog.SessionStatus, DataType and DataClass.
constexpr std::uint64_t kStart = 1;
constexpr std::uint64_t kStringType = 7;
constexpr std::uint64_t kTensorClass = 2;

static_assert(std::endian::native == std::endian::little, "records are written in memory order");

template <typename T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// ---- protobuf: a field is its number and its wire type, then its value

enum class Wire : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void append_varint(std::string& bytes, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  bytes += static_cast<char>(value);
}

void append_field(std::string& bytes, std::uint64_t number, Wire wire) {
  append_varint(bytes, number << 3 | static_cast<std::uint64_t>(wire));
}

void append_bytes(std::string& bytes, std::uint64_t number, std::string_view value) {
  append_field(bytes, number, Wire::bytes);
  append_varint(bytes, value.size());
  bytes += value;
}

void append_number(std::string& bytes, std::uint64_t number, std::uint64_t value) {
  append_field(bytes, number, Wire::varint);
  append_varint(bytes, value);
}

void append_double(std::string& bytes, std::uint64_t number, double value) {
  append_field(bytes, number, Wire::fixed64);
  append(bytes, value);
}

void append_doubles(std::string& bytes, std::uint64_t number, std::span<const double> values) {
  append_bytes(bytes, number, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)});
}

// ---- records
std::string record_of(std::string_view payload) {
  std::string record;
  append(record, static_cast<std::uint64_t>(payload.size()));
  append(record, masked_crc32c(record));
  record += payload;
  append(record, masked_crc32c(payload));
  return record;
}

std::string record_of_summary(double wall_time, std::int64_t step, std::string_view summary) {
  std::string event;
  append_double(event, 1, wall_time);
  append_number(event, 2, static_cast<std::uint64_t>(step));
  append_bytes(event, 5, summary);
  return record_of(event);
}

std::string histogram_proto(const Histogram& histogram) {
  std::string proto;
  append_double(proto, 1, histogram.min);
  append_double(proto, 2, histogram.max);
  append_double(proto, 3, static_cast<double>(histogram.values));
  append_double(proto, 4, histogram.sum);
  append_double(proto, 5, histogram.sum_of_squares);
  append_doubles(proto, 6, histogram.limits);
  append_doubles(proto, 7, histogram.counts);
  return proto;
}

}  // namespace

std::string event_record(double wall_time, std::int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    const auto number = static_cast<float>(scalar.value);
    if (!std::isfinite(number)) continue;
    std::string value;
    append_bytes(value, 1, scalar.tag);
    append_field(value, 2, Wire::fixed32);
    append(value, number);
    append_bytes(summary, 1, value);
  }
  return record_of_summary(wall_time, step, summary);
}

std::string event_record(double wall_time, std::int64_t step, std::span<const Histogram> histograms) {
  std::string summary;
  for (const Histogram& histogram : histograms) {
    std::string value;
    append_bytes(value, 1, histogram.tag);
    append_bytes(value, 5, histogram_proto(histogram));
    append_bytes(summary, 1, value);
  }
  return record_of_summary(wall_time, step, summary);
}

std::string event_record(double wall_time, std::int64_t step, const EventText& text) {
  std::string plugin, metadata, tensor, value, summary;
  append_bytes(plugin, 1, "text");
  append_bytes(metadata, 1, plugin);
  append_number(metadata, 4, kTensorClass);
  append_number(tensor, 1, kStringType);
  append_bytes(tensor, 2, {});  // the shape of a scalar
  append_bytes(tensor, 8, text.markdown);
  append_bytes(value, 1, text.tag);
  append_bytes(value, 8, tensor);
  append_bytes(value, 9, metadata);
  append_bytes(summary, 1, value);
  return record_of_summary(wall_time, step, summary);
}

std::string first_event_record(double wall_time) {
  std::string event;
  append_double(event, 1, wall_time);
  append_bytes(event, 3, kFileVersion);
  return record_of(event);
}

std::string start_record(double wall_time, std::int64_t step) {
  std::string log, event;
  append_number(log, 1, kStart);
  append_double(event, 1, wall_time);
  append_number(event, 2, static_cast<std::uint64_t>(step));
  append_bytes(event, 7, log);
  return record_of(event);
}

}  // namespace lockstep
