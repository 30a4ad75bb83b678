// SPDX-License-Identifier: Apache-2.0
//
// A folder of images: the names of a class and of a file in it, and the file's bytes.
#include "core/error.h"
#include "data/formats/image_folder.h"
#include "data/images/png.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

// A minimal baseline JPEG: gray, 8 x 8 pixels.
const unsigned char kGray[] = {
    0xff, 0xd8, 0xff, 0xdb, 0,  67,   0, 1, 1,    1,    1,    1,  1,    1,    1,   1, 1, 1, 1, 1,    1,
    1,    1,    1,    1,    1,  1,    1, 1, 1,    1,    1,    1,  1,    1,    1,   1, 1, 1, 1, 1,    1,
    1,    1,    1,    1,    1,  1,    1, 1, 1,    1,    1,    1,  1,    1,    1,   1, 1, 1, 1, 1,    1,
    1,    1,    1,    1,    1,  1,    1, 1, 0xff, 0xc0, 0,    11, 8,    0,    8,   0, 8, 1, 1, 0x11, 0,
    0xff, 0xc4, 0,    20,   0,  1,    0, 0, 0,    0,    0,    0,  0,    0,    0,   0, 0, 0, 0, 0,    0,
    3,    0xff, 0xc4, 0,    20, 0x10, 1, 0, 0,    0,    0,    0,  0,    0,    0,   0, 0, 0, 0, 0,    0,
    0,    0,    0xff, 0xda, 0,  8,    1, 1, 0,    0,    0x3f, 0,  0x37, 0xff, 0xd9};

// Turns the text into a valid file name, or "".
std::string file_name(std::string_view text) {
  std::string name(text.substr(0, 100));
  std::erase_if(name, [](char c) { return c == '/' || c == '\0'; });
  return name == "." || name == ".." ? "" : name;
}

}  // namespace

void try_input(std::string_view input) {
  Parts parts(input);
  const std::string of_class = file_name(parts.text()), name = file_name(parts.text());
  const std::string_view bytes = parts.rest();
  const std::filesystem::path top = folder() / "images";
  std::filesystem::remove_all(top);
  for (const char* split : {"train", "test"}) {
    std::filesystem::create_directories(top / split / of_class);
    if (!name.empty()) put(top / split / of_class / name, bytes);
  }
  const std::unique_ptr<Dataset> dataset = open_dataset({.format = "image_folder",
                                                         .path = top.string(),
                                                         .resize = {.size = 8, .random_crop = true},
                                                         .synthetic = {}},
                                                        Split::train);
  std::vector<std::uint8_t> small(static_cast<std::size_t>(dataset->image_shape().bytes()));
  const std::unique_ptr<Dataset> as_it_is = open_image_folder({.path = top}, Split::train);
  const ImageShape shape = as_it_is->image_shape();
  require(dataset->size() == 1 && dataset->classes() == 1, "expected one class and one image");
  dataset->fingerprint();
  dataset->probe(0);
  // Larger images take long and show nothing new.
  if (shape.bytes() > 1 << 20) return;
  std::vector<std::uint8_t> image(static_cast<std::size_t>(shape.bytes()));
  require(as_it_is->read(0, image) == 0, "the label must be 0");
  require(dataset->read_augmented(0, {}, small) == 0, "the label must be 0");
}

std::vector<std::string> seeds() {
  const std::string gray(reinterpret_cast<const char*>(kGray), sizeof(kGray));
  const auto input = [](std::string_view of_class, std::string_view name, std::string_view bytes) {
    return Parts::of_text(of_class) + Parts::of_text(name) + std::string(bytes);
  };
  std::string wide = gray;
  wide[78] = '\xff';  // 65,288 pixels
  const ImageShape shape{.height = 3, .width = 2, .channels = 3};
  const std::vector<std::uint8_t> png = encode_png(shape, std::vector<std::uint8_t>(18, 7));
  // An Exif segment after the first marker: rotated to the right.
  std::string turned = gray;
  turned.insert(2, std::string("\xff\xe1\0\x22"
                               "Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0",
                               36));
  return {input("cat", "turned.jpg", turned),
          input("cat", "a.png", {reinterpret_cast<const char*>(png.data()), png.size()}),
          input("cat", "a.jpg", gray),
          input("cat", "A.JPEG", gray.substr(0, 100)),
          input("c\x1b[2J", "\x1b]0;x\a.jpg", "no image"),
          input("", "a.jpg", gray),
          input("dog", "wide.jpg", wide)};
}

}  // namespace lockstep::fuzz
