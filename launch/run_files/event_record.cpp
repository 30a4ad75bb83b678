// SPDX-License-Identifier: Apache-2.0
#include "launch/run_files/event_record.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/crc32c.h"

namespace lockstep {
namespace {

constexpr std::string_view kFileVersion = "brain.Event:2";
// Of a record, around its payload.
constexpr std::size_t kHeadBytes = 12;
constexpr std::size_t kFootBytes = 4;
// tensorflow.DataType and DataClass.
constexpr std::uint64_t kStringType = 7;
constexpr std::uint64_t kTensorClass = 2;

static_assert(std::endian::native == std::endian::little, "records are written as they lie in memory");

template <typename T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T value_at(std::string_view bytes, std::size_t place) {
  T value;
  std::memcpy(&value, bytes.data() + place, sizeof(value));
  return value;
}

// ---- protobuf: a field is its number and how it is written, and then its value

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

std::optional<std::uint64_t> take_varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<std::uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

// The field of this number, where the bytes begin with it; it is taken from them.
std::optional<std::string_view> take_bytes(std::string_view& bytes, char number) {
  if (bytes.empty() || bytes.front() != (number << 3 | static_cast<char>(Wire::bytes))) return std::nullopt;
  bytes.remove_prefix(1);
  const std::uint64_t length = take_varint(bytes).value_or(0);
  const std::string_view value = bytes.substr(0, length);
  bytes.remove_prefix(value.size());
  return value;
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

std::optional<std::string_view> first_payload(std::string_view bytes) {
  if (bytes.size() < kHeadBytes + kFootBytes) return std::nullopt;
  const auto length = value_at<std::uint64_t>(bytes, 0);
  if (value_at<std::uint32_t>(bytes, sizeof(length)) != masked_crc32c(bytes.substr(0, sizeof(length))) ||
      length > bytes.size() - kHeadBytes - kFootBytes)
    return std::nullopt;
  const std::string_view payload = bytes.substr(kHeadBytes, length);
  if (value_at<std::uint32_t>(bytes, kHeadBytes + length) != masked_crc32c(payload)) return std::nullopt;
  return payload;
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
    if (!std::isfinite(scalar.value)) continue;
    std::string value;
    append_bytes(value, 1, scalar.tag);
    append_field(value, 2, Wire::fixed32);
    append(value, static_cast<float>(scalar.value));
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
  append_bytes(tensor, 2, {});  // the shape of a single one
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

// Fields are in the order of their numbers.
std::optional<EventPlace> first_event(std::string_view bytes) {
  constexpr std::size_t kWallTimeBytes = 1 + sizeof(double);
  const std::optional<std::string_view> payload = first_payload(bytes);
  if (!payload) return std::nullopt;
  EventPlace place{.bytes = kHeadBytes + payload->size() + kFootBytes};
  std::string_view event = payload->substr(std::min(payload->size(), kWallTimeBytes));
  if (event.empty() || event.front() != 2 << 3) return place;
  event.remove_prefix(1);
  place.step = static_cast<std::int64_t>(take_varint(event).value_or(0));
  std::string_view summary = take_bytes(event, 5).value_or("");
  std::string_view value = take_bytes(summary, 1).value_or("");
  place.tag = take_bytes(value, 1).value_or("");
  return place;
}

}  // namespace lockstep
