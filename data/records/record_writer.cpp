// SPDX-License-Identifier: Apache-2.0
#include "data/records/record_writer.h"

#include <cstring>
#include <limits>

#include "core/error.h"
#include "core/files/crc32c.h"

namespace lockstep {
namespace {

constexpr std::size_t kBuffer = std::size_t{1} << 20;

std::string names_text(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    if (name.size() > std::numeric_limits<std::uint16_t>::max())
      throw ConfigError(fmt::format("a class name has {} bytes; the limit is 65535", name.size()));
    const auto length = static_cast<std::uint16_t>(name.size());
    text += bytes_of(length);
    text += name;
  }
  return text;
}

}  // namespace

RecordWriter::RecordWriter(const std::filesystem::path& path, const RecordSchema& schema)
    : schema_(schema), file_(path) {
  CHECK(schema.class_names.empty() || static_cast<std::int64_t>(schema.class_names.size()) == schema.classes,
        "{} names for {} classes", schema.class_names.size(), schema.classes);
  CHECK(!schema.own_sizes || schema.coding == ImageCoding::file, "own_sizes needs ImageCoding::file");
  if (schema.shape.type != DType::u8) {
    throw ConfigError("record files store images only; rows of a table cannot be packed");
  }
  if (schema.shape.bytes() > kMostImageBytes) {
    throw ConfigError(fmt::format("an image has {} bytes; the limit of record files is {}",
                                  schema.shape.bytes(), kMostImageBytes));
  }
  const std::string names = names_text(schema.class_names);
  if (schema.classes > kMostRecordClasses || names.size() > kMostRecordNameBytes) {
    throw ConfigError(
        fmt::format("{} classes, with names of {} bytes; the limits of record files are {} and {}",
                    schema.classes, names.size(), kMostRecordClasses, kMostRecordNameBytes));
  }
  std::memcpy(header_.magic, kRecordMagic.data(), kRecordMagic.size());
  header_.coding = static_cast<std::uint32_t>(schema.coding);
  header_.height = static_cast<std::uint32_t>(schema.shape.height);
  header_.width = static_cast<std::uint32_t>(schema.shape.width);
  header_.channels = static_cast<std::uint32_t>(schema.shape.channels);
  header_.classes = static_cast<std::uint32_t>(schema.classes);
  header_.shard = static_cast<std::uint32_t>(schema.shard);
  header_.shards = static_cast<std::uint32_t>(schema.shards);
  header_.name_bytes = static_cast<std::uint32_t>(names.size());
  header_.source = schema.source;
  header_.own_sizes = schema.own_sizes ? 1 : 0;
  header_.names_crc = crc32c(names);
  header_.header_crc = crc32c(checked_part(header_));
  write(bytes_of(header_));
  write(names);
}

void RecordWriter::add(std::span<const std::uint8_t> image, std::int32_t label) {
  CHECK(label >= 0 && label < schema_.classes, "label {} of {} classes", label, schema_.classes);
  CHECK(schema_.coding != ImageCoding::pixels ||
            static_cast<std::int64_t>(image.size()) == schema_.shape.bytes(),
        "{} bytes for an image of {}", image.size(), schema_.shape.bytes());
  const std::string_view bytes(reinterpret_cast<const char*>(image.data()), image.size());
  table_.push_back({.offset = written_,
                    .bytes = static_cast<std::uint32_t>(image.size()),
                    .crc = crc32c(bytes),
                    .label = label});
  write(bytes);
}

void RecordWriter::finish() {
  CHECK(!table_.empty(), "a record file without an image");
  std::string table((kTableAlignment - written_ % kTableAlignment) % kTableAlignment, '\0');
  const std::uint64_t begin = written_ + table.size();
  for (const RecordEntry& entry : table_) table += bytes_of(entry);
  write(table);
  RecordFooter footer{.records = table_.size(),
                      .table = begin,
                      .file_bytes = written_ + sizeof(RecordFooter),
                      .table_crc = crc32c(table),
                      .header_crc = header_.header_crc};
  std::memcpy(footer.end, kRecordEnd.data(), sizeof(footer.end));
  footer.footer_crc = crc32c(checked_part(footer));
  write(bytes_of(footer));
  file_.write(buffer_.data(), buffer_.size());
  file_.commit();
}

void RecordWriter::write(std::string_view bytes) {
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  written_ += bytes.size();
  if (buffer_.size() < kBuffer) return;
  file_.write(buffer_.data(), buffer_.size());
  buffer_.clear();
}

}  // namespace lockstep
