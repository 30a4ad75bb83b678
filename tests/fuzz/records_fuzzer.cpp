// SPDX-License-Identifier: Apache-2.0
//
// A record file, with the input's checksums or corrected ones.
#include <cstring>

#include "core/error.h"
#include "core/files/crc32c.h"
#include "data/images/jpeg_decoder.h"
#include "data/records/record_layout.h"
#include "data/records/record_writer.h"
#include "data/records/records.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/read_some.h"

namespace lockstep::fuzz {
namespace {

constexpr std::uint8_t kMakeRight = 1;

// Corrects the checksums of all parts that lie within the file, by the sizes in its header.
std::string with_right_checksums(std::string bytes) {
  RecordHeader header;
  RecordFooter footer;
  if (bytes.size() < sizeof(header) + sizeof(footer)) return bytes;
  char* end = bytes.data() + bytes.size() - sizeof(footer);
  std::memcpy(&header, bytes.data(), sizeof(header));
  std::memcpy(&footer, end, sizeof(footer));
  const auto part = [&](std::uint64_t begin, std::uint64_t length) {
    const std::uint64_t from = std::min<std::uint64_t>(begin, bytes.size());
    return std::string_view(bytes).substr(from, std::min<std::uint64_t>(length, bytes.size()));
  };
  const std::uint64_t at = static_cast<std::uint64_t>(end - bytes.data());
  if (footer.table <= at && at - footer.table >= sizeof(RecordEntry)) {
    auto* table = bytes.data() + footer.table;
    for (std::uint64_t i = 0; i < (at - footer.table) / sizeof(RecordEntry); ++i) {
      RecordEntry entry;
      std::memcpy(&entry, table + i * sizeof(entry), sizeof(entry));
      entry.crc = crc32c(part(entry.offset, entry.bytes));
      std::memcpy(table + i * sizeof(entry), &entry, sizeof(entry));
    }
    RecordEntry last;
    std::memcpy(&last, bytes.data() + at - sizeof(last), sizeof(last));
    const std::uint64_t images = last.offset + last.bytes;
    if (images <= at) footer.table_crc = crc32c(part(images, at - images));
  }
  header.names_crc = crc32c(part(sizeof(header), header.name_bytes));
  header.header_crc = crc32c(checked_part(header));
  footer.header_crc = header.header_crc;
  footer.footer_crc = crc32c(checked_part(footer));
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(end, &footer, sizeof(footer));
  return bytes;
}

std::string file_of(ImageCoding coding, std::int64_t images, const std::vector<std::string>& names,
                    bool own_sizes = false) {
  const std::filesystem::path path = folder() / "seed.lsr";
  RecordWriter writer(
      path,
      {.coding = coding, .shape = {4, 2, 3}, .own_sizes = own_sizes, .classes = 2, .class_names = names});
  for (std::int64_t i = 0; i < images; ++i) {
    const ImageShape shape{.height = 4 + i, .width = 2, .channels = 3};
    std::vector<std::uint8_t> image(own_sizes ? static_cast<std::size_t>(shape.bytes()) : 24,
                                    static_cast<std::uint8_t>(i));
    if (own_sizes) image = encode_jpeg(shape, image, 90);
    writer.add(image, static_cast<std::int32_t>(i % 2));
  }
  writer.finish();
  std::string bytes(std::filesystem::file_size(path), '\0');
  std::FILE* file = std::fopen(path.c_str(), "rb");
  require(file != nullptr && std::fread(bytes.data(), 1, bytes.size(), file) == bytes.size(),
          "cannot read the written file");
  std::fclose(file);
  return bytes;
}

}  // namespace

void try_input(std::string_view input) {
  Parts parts(input);
  const bool make_right = (parts.byte() & kMakeRight) != 0;
  const std::string bytes(parts.rest());
  std::filesystem::remove_all(folder() / "records");
  put("records/test-00000-of-00001.lsr", make_right ? with_right_checksums(bytes) : bytes);
  const std::unique_ptr<Dataset> dataset =
      open_records({.path = folder() / "records", .resize = {.size = 8}}, Split::test);
  for (std::int64_t i = 0; i < std::min<std::int64_t>(dataset->size(), 8); ++i) {
    OwnSizeImage image;
    if (dataset->own_shape(i).bytes() > 1 << 20) continue;
    dataset->read_own_size(
        i, [](const ImageShape& whole) { return whole; }, image);
    require(std::ssize(image.pixels) == image.shape.bytes(), "the number of pixels must match the shape");
  }
  read_some(*dataset);
}

std::vector<std::string> seeds() {
  const std::string pixels = file_of(ImageCoding::pixels, 3, {"cat", "dog"});
  const std::string jpeg = file_of(ImageCoding::file, 1, {});
  const std::string any_size = file_of(ImageCoding::file, 3, {}, true);
  return {std::string(1, '\0') + pixels,   std::string(1, '\1') + pixels,
          std::string(1, '\1') + jpeg,     std::string(1, '\0') + any_size,
          std::string(1, '\1') + any_size, std::string(1, '\0') + pixels.substr(0, pixels.size() - 1)};
}

}  // namespace lockstep::fuzz
