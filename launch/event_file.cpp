// SPDX-License-Identifier: Apache-2.0
#include "launch/event_file.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>

#include <fmt/format.h>

#include "core/crc32c.h"
#include "core/error.h"
#include "core/host_name.h"
#include "core/log.h"
#include "core/timeline.h"
#include "launch/run_folder.h"

namespace lockstep {
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr std::string_view kVersion = "brain.Event:2";
// Of a record, around its payload.
constexpr std::size_t kHeadBytes = 12;
constexpr std::size_t kFootBytes = 4;

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

// Of an Event whose fields are in the order of their numbers, as ours are; 0 where it has none.
std::int64_t step_of(std::string_view event) {
  constexpr std::size_t kWallTimeBytes = 1 + sizeof(double);
  if (event.size() <= kWallTimeBytes || event[kWallTimeBytes] != (2 << 3)) return 0;
  event.remove_prefix(kWallTimeBytes + 1);
  return static_cast<std::int64_t>(take_varint(event).value_or(0));
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

// The first payload; nothing where the bytes do not begin with a whole record.
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

// How many bytes of a file are whole records up to a step, or those of the series up to its own.
std::size_t bytes_up_to(std::string_view file, std::int64_t step, std::int64_t step_of_series) {
  std::size_t kept = 0;
  while (const auto payload = first_payload(file.substr(kept))) {
    const bool of_series = payload->find(kSeriesPrefix) != std::string_view::npos;
    if (step_of(*payload) > (of_series ? step_of_series : step)) break;
    kept += kHeadBytes + payload->size() + kFootBytes;
  }
  return kept;
}

std::filesystem::path create_file(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::filesystem::path path =
      folder / fmt::format("{}{:.0f}.{}", kPrefix, seconds_since_1970(), host_name());
  std::string event;
  append_field(event, 1, Wire::fixed64);
  append(event, seconds_since_1970());
  append_bytes(event, 3, kVersion);
  const int failed = error ? error.value() : append_whole(path, record_of(event));
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
  std::string event;
  append_field(event, 1, Wire::fixed64);
  append(event, wall_time);
  append_field(event, 2, Wire::varint);
  append_varint(event, static_cast<std::uint64_t>(step));
  append_bytes(event, 5, summary);
  return record_of(event);
}

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

int EventFile::add(std::int64_t step, std::span<const Scalar> scalars) const {
  return path_.empty() ? 0 : append_whole(path_, event_record(seconds_since_1970(), step, scalars));
}

}  // namespace lockstep
