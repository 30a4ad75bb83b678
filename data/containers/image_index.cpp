// SPDX-License-Identifier: Apache-2.0
#include "data/containers/image_index.h"

#include <cstring>

#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/files/crc32c.h"
#include "core/log.h"
#include "data/containers/split_files.h"

namespace lockstep {
namespace {

// Its digit rises when the indexer refuses records that it accepted before.
constexpr std::string_view kIndexMagic = "LSINDEX4";

struct IndexHeader {
  char magic[8] = {};
  std::uint64_t file_bytes = 0;  // size of the indexed file
  std::int64_t changed_ns = 0;
  std::uint64_t images = 0;
  std::uint32_t asked = 0;
  std::uint32_t unused = 0;
  std::uint32_t images_crc = 0;
  std::uint32_t header_crc = 0;  // of all bytes before this one
};
static_assert(sizeof(IndexHeader) == 48);

std::string_view checked_part(const IndexHeader& header) {
  return {reinterpret_cast<const char*>(&header), offsetof(IndexHeader, header_crc)};
}

std::uint32_t checksum_of(const std::vector<StoredImage>& images) {
  return crc32c({reinterpret_cast<const char*>(images.data()), images.size() * sizeof(StoredImage)});
}

std::filesystem::path index_path(const ReadableFile& file) { return file.name() + std::string(kIndexSuffix); }

}  // namespace

std::optional<std::vector<StoredImage>> read_index(const ReadableFile& file, std::uint32_t asked) try {
  const ReadableFile index(index_path(file));
  IndexHeader header;
  if (index.bytes() < sizeof(header)) return std::nullopt;
  index.read(0, &header, sizeof(header));
  const std::uint64_t room = (index.bytes() - sizeof(header)) / sizeof(StoredImage);
  if (std::string_view(header.magic, sizeof(header.magic)) != kIndexMagic ||
      crc32c(checked_part(header)) != header.header_crc || header.file_bytes != file.bytes() ||
      header.changed_ns != file.changed_ns() || header.asked != asked || header.images != room) {
    return std::nullopt;
  }
  std::vector<StoredImage> images(static_cast<std::size_t>(room));
  index.read(sizeof(header), images.data(), images.size() * sizeof(StoredImage));
  if (checksum_of(images) != header.images_crc) return std::nullopt;
  return images;
} catch (const Error&) {
  return std::nullopt;
}

void write_index(const ReadableFile& file, std::uint32_t asked, const std::vector<StoredImage>& images) try {
  IndexHeader header{.file_bytes = file.bytes(),
                     .changed_ns = file.changed_ns(),
                     .images = images.size(),
                     .asked = asked,
                     .images_crc = checksum_of(images)};
  std::memcpy(header.magic, kIndexMagic.data(), kIndexMagic.size());
  header.header_crc = crc32c(checked_part(header));
  AtomicFile index(index_path(file));
  index.write(&header, sizeof(header));
  index.write(images.data(), images.size() * sizeof(StoredImage));
  index.commit();
} catch (const IoError& error) {
  log::info("{}; the next start reads the whole of {} again", error.what(), file.name());
}

}  // namespace lockstep
