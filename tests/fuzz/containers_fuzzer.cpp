// SPDX-License-Identifier: Apache-2.0
//
// Files with many images: TFRecord and tar, with the input's checksums or corrected ones; and the index of a
// TFRecord file.
#include <cstring>

#include "core/error.h"
#include "core/files/crc32c.h"
#include "data/containers/tfrecord.h"
#include "data/containers/webdataset.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/read_some.h"

namespace lockstep::fuzz {
namespace {

constexpr int kTar = 1, kMakeRight = 2, kIndex = 4;

void put_number(std::string& bytes, std::size_t at, std::uint32_t value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

// Corrects the checksums of all frames that lie within the bytes.
std::string with_right_frames(std::string bytes) {
  std::size_t at = 0;
  while (bytes.size() - at >= 16) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data() + at, sizeof(length));
    put_number(bytes, at + 8, masked_crc32c(std::string_view(bytes).substr(at, 8)));
    if (length > bytes.size() - at - 16) break;
    put_number(bytes, at + 12 + length, masked_crc32c(std::string_view(bytes).substr(at + 12, length)));
    at += 16 + length;
  }
  return bytes;
}

// Corrects the checksum of every block, as if it were a header.
std::string with_right_sums(std::string bytes) {
  for (std::size_t at = 0; at + 512 <= bytes.size(); at += 512) {
    if (bytes[at] == '\0') continue;
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at) + 148, 8, ' ');
    unsigned sum = 0;
    for (std::size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(bytes[at + i]);
    bytes.replace(at + 148, 7, fmt::format("{:06o}", sum) + '\0');
  }
  return bytes;
}

std::string member(const std::string& name, const std::string& data, char type = '0') {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  header.replace(124, 11, fmt::format("{:011o}", data.size()));
  header[156] = type;
  header.replace(257, 8, std::string("ustar\0", 6) + "00");
  std::string padded = data;
  padded.resize((data.size() + 511) / 512 * 512);
  return with_right_sums(header) + padded;
}

std::string framed(const std::string& data) {
  std::string frame(8, '\0');
  const std::uint64_t length = data.size();
  std::memcpy(frame.data(), &length, sizeof(length));
  return with_right_frames(frame + std::string(4, '\0') + data + std::string(4, '\0'));
}

}  // namespace

void try_input(std::string_view input) {
  Parts parts(input);
  const int kinds = parts.byte();
  const std::string_view index = (kinds & kIndex) != 0 ? parts.text() : std::string_view();
  std::string bytes(parts.rest());
  const bool tar = (kinds & kTar) != 0;
  if ((kinds & kMakeRight) != 0) bytes = tar ? with_right_sums(bytes) : with_right_frames(bytes);
  std::filesystem::remove_all(folder() / "container");
  put(tar ? "container/train.tar" : "container/train.tfrecord", bytes);
  if ((kinds & kIndex) != 0) put("container/train.tfrecord.lsindex", index);

  const std::unique_ptr<Dataset> dataset =
      tar ? open_webdataset({.path = folder() / "container"}, Split::train)
          : open_tfrecord({.path = folder() / "container"}, Split::train);
  read_some(*dataset);
}

std::vector<std::string> seeds() {
  // A PNG image of one gray pixel.
  const std::string png(
      "\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\0\0\0\0\x3a\x7e\x9b\x55\0\0\0\nIDAT\x78\x9c\x63\x60"
      "\0\0\0\2"
      "\0\1\x48\xaf\xa4\x71\0\0\0\0IEND\xae\x42\x60\x82",
      67);
  const auto kind = [](int kinds) { return std::string(1, static_cast<char>(kinds)); };
  const std::string tar = member("a.png", png) + member("a.cls", "1") + std::string(1024, '\0');
  const std::string long_name = member("././@LongLink", "b.png", 'L') + member("x", png) +
                                member("pax", "14 path=b.cls\n", 'x') + member("y", "0");
  const auto sized = [](const std::string& text) { return static_cast<char>(text.size()) + text; };
  const std::string image =
      "\x0a" + sized("\x0a" + sized("image") + "\x12" + sized("\x0a" + sized("\x0a" + sized(png))));
  const std::string label =
      std::string("\x0a") + sized("\x0a" + sized("label") + "\x12" + sized("\x1a" + sized("\x0a\1\1")));
  const std::string record = framed("\x0a" + sized(image + label));
  return {kind(kTar) + tar,
          kind(kTar | kMakeRight) + tar,
          kind(kTar | kMakeRight) + long_name,
          kind(0) + record,
          kind(kMakeRight) + record + record,
          kind(kIndex) + Parts::of_text("LSINDEX4") + record};
}

}  // namespace lockstep::fuzz
