// SPDX-License-Identifier: Apache-2.0
#include "data/records/record_file.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include <sys/mman.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"
#include "core/files/crc32c.h"
#include "data/prefetch.h"

namespace lockstep {
namespace {

bool all_zero(std::span<const char> bytes) {
  return std::ranges::all_of(bytes, [](char c) { return c == 0; });
}

std::uint32_t checksum(std::span<const std::uint8_t> bytes) {
  return crc32c({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace

// One bit per record: its image passed the checksum test.
class RecordFile::CheckedRecords {
 public:
  explicit CheckedRecords(std::size_t records) : words_((records + 63) / 64) {}
  bool has(std::int64_t index) const {
    return (word(index).load(std::memory_order_relaxed) >> (index % 64) & 1) != 0;
  }
  void add(std::int64_t index) {
    word(index).fetch_or(std::uint64_t{1} << (index % 64), std::memory_order_relaxed);
  }
  std::size_t memory_bytes() const { return words_.capacity() * sizeof(std::uint64_t); }

 private:
  std::atomic<std::uint64_t>& word(std::int64_t index) const {
    return words_[static_cast<std::size_t>(index / 64)];
  }
  mutable std::vector<std::atomic<std::uint64_t>> words_;
};

RecordFile::RecordFile(const std::filesystem::path& path, Access access) : file_(path) {
  try {
    read_header();
    map(read_footer(), access);
    check_table();
    checked_ = std::make_unique<CheckedRecords>(table_.size());
  } catch (...) {
    if (mapping_ != nullptr) munmap(mapping_, mapped_bytes_);
    throw;
  }
}

RecordFile::~RecordFile() { munmap(mapping_, mapped_bytes_); }

void RecordFile::read_header() {
  if (file_.bytes() < sizeof(header_) + sizeof(RecordFooter))
    fail(0, fmt::format("the file has {} bytes; a record file has {} or more", file_.bytes(),
                        sizeof(header_) + sizeof(RecordFooter)));
  file_.read(0, &header_, sizeof(header_));
  if (std::string_view(header_.magic, sizeof(header_.magic)) != kRecordMagic)
    fail(0, "not a record file: its first bytes differ");
  if (header_.byte_order != kByteOrder)
    fail(offsetof(RecordHeader, byte_order), "the byte order is not little-endian");
  if (header_.version != kRecordVersion)
    fail(offsetof(RecordHeader, version),
         fmt::format("version {}; this program reads version {}", header_.version, kRecordVersion));
  if (crc32c(checked_part(header_)) != header_.header_crc) fail(0, "the header is damaged");
  const std::uint64_t area = std::uint64_t{header_.height} * header_.width;  // below 2^64
  const bool jpeg = header_.coding == static_cast<std::uint32_t>(ImageCoding::file);
  const bool sound_shape = area > 0 && area <= kMostImageBytes && header_.channels > 0 &&
                           area * header_.channels <= kMostImageBytes &&
                           (!jpeg || header_.channels == 1 || header_.channels == 3);
  if (!sound_shape || header_.coding > static_cast<std::uint32_t>(ImageCoding::file) ||
      header_.own_sizes > (jpeg ? 1u : 0u) || header_.classes == 0 || header_.classes > kMostRecordClasses ||
      header_.shard >= header_.shards || header_.name_bytes > kMostRecordNameBytes ||
      !all_zero(header_.zeros)) {
    fail(0, "the header has invalid values");
  }
  read_names();
}

void RecordFile::read_names() {
  if (header_.name_bytes > file_.bytes() - sizeof(header_) - sizeof(RecordFooter))
    fail(sizeof(header_), "the file ends within the class names");
  std::string names(header_.name_bytes, '\0');
  file_.read(sizeof(header_), names.data(), names.size());
  if (crc32c(names) != header_.names_crc) fail(sizeof(header_), "the class names are damaged");
  std::string_view rest = names;
  while (!rest.empty()) {
    std::uint16_t length = 0;
    if (rest.size() < sizeof(length)) fail(sizeof(header_), "the class names are truncated");
    std::memcpy(&length, rest.data(), sizeof(length));
    rest.remove_prefix(sizeof(length));
    if (rest.size() < length) fail(sizeof(header_), "the class names are truncated");
    class_names_.emplace_back(rest.substr(0, length));
    rest.remove_prefix(length);
  }
  if (!class_names_.empty() && class_names_.size() != header_.classes)
    fail(sizeof(header_), fmt::format("{} names for {} classes", class_names_.size(), header_.classes));
}

RecordFooter RecordFile::read_footer() const {
  RecordFooter footer;
  const std::uint64_t at = file_.bytes() - sizeof(footer);
  file_.read(at, &footer, sizeof(footer));
  if (std::string_view(footer.end, sizeof(footer.end)) != kRecordEnd)
    fail(at, "the file has no footer at its end: it was truncated or extended");
  if (crc32c(checked_part(footer)) != footer.footer_crc) fail(at, "the footer is damaged");
  if (footer.header_crc != header_.header_crc) fail(at, "the footer belongs to another file");
  if (footer.file_bytes != file_.bytes())
    fail(at, fmt::format("{} bytes, expected {}: the file was truncated or extended", file_.bytes(),
                         footer.file_bytes));
  const std::uint64_t begin = sizeof(header_) + header_.name_bytes;
  if (footer.table % kTableAlignment != 0 || footer.table < begin || footer.table > at ||
      (at - footer.table) / sizeof(RecordEntry) != footer.records ||
      (at - footer.table) % sizeof(RecordEntry) != 0 || footer.records == 0 || !all_zero(footer.zeros)) {
    fail(at, "the footer has invalid values");
  }
  return footer;
}

// Maps the whole file, or from the page that holds the zeros between the last image and the table.
void RecordFile::map(const RecordFooter& footer, Access access) {
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t from =
      access == Access::mapped ? 0 : (footer.table - std::min(footer.table, kTableAlignment)) / page * page;
  mapped_bytes_ = file_.bytes() - from;
  void* mapping =
      mmap(nullptr, mapped_bytes_, PROT_READ, MAP_SHARED, file_.descriptor(), static_cast<off_t>(from));
  if (mapping == MAP_FAILED)
    throw IoError(fmt::format("{}: cannot be mapped: {}", path(), std::strerror(errno)));
  mapping_ = mapping;
  if (access == Access::mapped) {
    images_ = static_cast<const std::uint8_t*>(mapping);
    madvise(mapping, mapped_bytes_, MADV_WILLNEED);  // a hint: failure is harmless
  }
  const char* table = static_cast<const char*>(mapping) + (footer.table - from);
  table_ = {reinterpret_cast<const RecordEntry*>(table), static_cast<std::size_t>(footer.records)};
  table_begin_ = footer.table;

  const RecordEntry& last = table_.back();
  if (last.bytes > footer.table || last.offset > footer.table - last.bytes ||
      footer.table - (last.offset + last.bytes) >= kTableAlignment) {
    fail(footer.table + (table_.size() - 1) * sizeof(RecordEntry),
         "the last image does not end at the table");
  }
  const std::uint64_t zeros = footer.table - (last.offset + last.bytes);
  const std::string_view covered(table - zeros, zeros + table_.size_bytes());
  if (crc32c(covered) != footer.table_crc) fail(footer.table, "the table is damaged");
  fingerprint_ = XXH3_64bits_withSeed(covered.data(), covered.size(), footer.header_crc);
}

// Images must have no gaps between them, so that a checksum covers every byte.
void RecordFile::check_table() const {
  std::uint64_t expected = sizeof(header_) + header_.name_bytes;
  const std::uint64_t pixels = std::uint64_t{header_.height} * header_.width * header_.channels;
  const bool holds_pixels = header_.coding == static_cast<std::uint32_t>(ImageCoding::pixels);
  for (std::int64_t i = 0; i < size(); ++i) {
    const RecordEntry& found = entry(i);
    const auto in_table = [&] { return table_begin_ + static_cast<std::uint64_t>(i) * sizeof(RecordEntry); };
    if (found.offset != expected || found.bytes > table_begin_ - expected || found.zero != 0)
      fail(in_table(), fmt::format("record {}: it does not begin where the previous record ends", i));
    if (found.bytes > kMostImageBytes || (holds_pixels ? found.bytes != pixels : found.bytes == 0))
      fail(in_table(), fmt::format("record {}: {} bytes for an image of {}x{}x{}", i, found.bytes,
                                   header_.height, header_.width, header_.channels));
    if (found.label < 0 || static_cast<std::uint32_t>(found.label) >= header_.classes)
      fail(in_table(), fmt::format("record {}: label {} of {} classes", i, found.label, header_.classes));
    expected += found.bytes;
  }
}

std::string RecordFile::place(std::int64_t index) const {
  return fmt::format("{}: record {}, at byte {}", path(), index, entry(index).offset);
}

void RecordFile::prefetch(std::int64_t index) const {
  if (images_ == nullptr) return;
  const RecordEntry& soon = entry(index);
  const std::uint8_t* image = images_ + soon.offset;
  prefetch_lines({image, soon.bytes});
}

void RecordFile::read(std::int64_t index, std::span<std::uint8_t> image) const {
  const RecordEntry& found = entry(index);
  CHECK(image.size() == found.bytes, "{}: {} bytes into {}", place(index), found.bytes, image.size());
  if (images_ != nullptr) {
    std::memcpy(image.data(), images_ + found.offset, image.size());
  } else {
    file_.read(found.offset, image.data(), image.size());
  }
  check(index, image);
}

std::span<const std::uint8_t> RecordFile::look_at(std::int64_t index,
                                                  std::vector<std::uint8_t>& scratch) const {
  const RecordEntry& found = entry(index);
  if (images_ == nullptr) {
    scratch.resize(found.bytes);
    read(index, scratch);
    return scratch;
  }
  const std::span<const std::uint8_t> image(images_ + found.offset, found.bytes);
  check(index, image);
  return image;
}

void RecordFile::check(std::int64_t index, std::span<const std::uint8_t> image) const {
  if (checked_->has(index)) return;
  if (checksum(image) != entry(index).crc)
    throw DataError(
        fmt::format("{}: the image is damaged: its checksum differs from the table", place(index)));
  checked_->add(index);
}

std::size_t RecordFile::memory_bytes() const { return checked_->memory_bytes(); }

void RecordFile::fail(std::uint64_t offset, const std::string& what) const {
  throw DataError(fmt::format("{}: at byte {}: {}", path(), offset, what));
}

}  // namespace lockstep
