// SPDX-License-Identifier: Apache-2.0
//
// The two files of a split in the IDX format, plain or gzip.
#include "core/error.h"
#include "data/formats/idx.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/read_some.h"

namespace lockstep::fuzz {
namespace {

constexpr int kColour = 1, kImagesGzip = 2, kLabelsGzip = 4;

std::string words(std::initializer_list<std::uint32_t> list) {
  std::string text;
  for (const std::uint32_t word : list)
    for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(word >> shift);
  return text;
}

// Labels of two images in gzip: 00000801 00000002 00 01.
const std::string kLabelsInGzip = {
    "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x63\x60\xe0\x60\x64"
    "\x60\x60\x60\x62\x60\x04\x00\x8f\x9c\x9b\xe2\x0a\x00\x00\x00",
    30};

}  // namespace

void try_input(std::string_view input) {
  Parts parts(input);
  const int kinds = parts.byte();
  const std::string_view labels = parts.text(), images = parts.rest();
  std::filesystem::remove_all(folder() / "idx");
  put(std::filesystem::path("idx") /
          ((kinds & kLabelsGzip) != 0 ? "train-labels-idx1-ubyte.gz" : "train-labels-idx1-ubyte"),
      labels);
  const std::string name = (kinds & kColour) != 0 ? "train-images-idx4-ubyte" : "train-images-idx3-ubyte";
  put(std::filesystem::path("idx") / ((kinds & kImagesGzip) != 0 ? name + ".gz" : name), images);

  const std::unique_ptr<Dataset> dataset = open_idx(folder() / "idx", Split::train);
  read_some(*dataset);
}

std::vector<std::string> seeds() {
  const std::string labels = words({0x801, 2}) + std::string("\0\1", 2);
  const std::string images = words({0x803, 2, 3, 2}) + std::string(12, 'x');
  const std::string colour = words({0x804, 2, 1, 2, 3}) + std::string(12, 'x');
  const auto input = [](int kinds, const std::string& labels, const std::string& images) {
    return std::string(1, static_cast<char>(kinds)) + Parts::of_text(labels) + images;
  };
  return {input(0, labels, images), input(kColour, labels, colour), input(kLabelsGzip, kLabelsInGzip, images),
          input(kImagesGzip, labels, kLabelsInGzip),
          input(0, labels, words({0x803, 0xffffffff, 0xffff, 0xffff}))};
}

}  // namespace lockstep::fuzz
