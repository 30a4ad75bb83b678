// SPDX-License-Identifier: Apache-2.0
#include "data/images/orientation.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "core/error.h"

namespace lockstep {
namespace {

using Bytes = std::span<const std::uint8_t>;

bool begins_with(Bytes bytes, std::string_view text) {
  return bytes.size() >= text.size() &&
         std::equal(text.begin(), text.end(), bytes.begin(),
                    [](char c, std::uint8_t byte) { return static_cast<std::uint8_t>(c) == byte; });
}

// Numbers of a TIFF header, in the byte order that it names.
class Tiff {
 public:
  explicit Tiff(Bytes bytes) : bytes_(bytes), little_(begins_with(bytes, "II")) {}

  // Returns 0 if the header ends before.
  std::uint32_t number(std::size_t at, std::size_t size) const {
    if (at > bytes_.size() || bytes_.size() - at < size) return 0;
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < size; ++i) value = value << 8 | bytes_[little_ ? at + size - 1 - i : at + i];
    return value;
  }

  int orientation() const {
    constexpr std::uint32_t kMagic = 42, kOrientation = 0x0112, kShort = 3;
    constexpr std::size_t kEntry = 12;
    if (!(little_ || begins_with(bytes_, "MM")) || number(2, 2) != kMagic) return 1;
    const std::size_t directory = number(4, 4);
    const std::uint32_t entries = number(directory, 2);
    for (std::uint32_t i = 0; i < entries; ++i) {
      const std::size_t entry = directory + 2 + kEntry * i;
      if (entry + kEntry > bytes_.size()) break;
      if (number(entry, 2) != kOrientation) continue;
      const std::uint32_t value = number(entry + 8, 2);
      return number(entry + 2, 2) == kShort && value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
    }
    return 1;
  }

 private:
  Bytes bytes_;
  bool little_;
};

// Searches the segments before the first scan.
int of_jpeg(Bytes image) {
  constexpr std::uint8_t kApp1 = 0xe1, kScan = 0xda, kFill = 0xff;
  constexpr std::string_view kExif("Exif\0\0", 6);
  for (std::size_t at = 2; at + 4 <= image.size() && image[at] == 0xff;) {
    const std::uint8_t marker = image[at + 1];
    if (marker == kFill) {  // any number of fill bytes may precede a marker (ITU-T T.81, B.1.1.2)
      ++at;
      continue;
    }
    const auto length = static_cast<std::size_t>(image[at + 2] << 8 | image[at + 3]);
    if (marker == kScan || length < 2) break;
    const Bytes content = image.subspan(at + 4, std::min(length - 2, image.size() - at - 4));
    if (marker == kApp1 && begins_with(content, kExif))
      return Tiff(content.subspan(kExif.size())).orientation();
    at += 2 + length;
  }
  return 1;
}

// The chunks of a PNG file, or of a part of it. A chunk is a length and a name, of 4 bytes each, data of that
// length, and a checksum.
class PngChunks {
 public:
  explicit PngChunks(Bytes bytes) : bytes_(bytes) {}

  // A chunk without data fits at `at`.
  bool fits(std::size_t at) const { return at + kBesideData <= bytes_.size(); }
  bool is(std::size_t at, std::string_view name) const { return begins_with(bytes_.subspan(at + 4), name); }
  std::size_t after(std::size_t at) const { return at + kBesideData + length(at); }
  int orientation(std::size_t at) const {
    const Bytes data = bytes_.subspan(at + 8);
    return Tiff(data.first(std::min(data.size(), length(at)))).orientation();
  }

 private:
  static constexpr std::size_t kBesideData = 12;

  std::size_t length(std::size_t at) const {
    return std::size_t{bytes_[at]} << 24 | std::size_t{bytes_[at + 1]} << 16 |
           std::size_t{bytes_[at + 2]} << 8 | bytes_[at + 3];
  }

  Bytes bytes_;
};

// Searches the chunks before the pixels and then, because some programs write eXIf after the pixels, the end
// of the file. A name found there is that of a chunk if the lengths lead from it to the last chunk, IEND.
int of_png(Bytes first, Bytes last) {
  constexpr std::size_t kSignature = 8;
  constexpr std::string_view kExif = "eXIf";
  const PngChunks begin(first), end(last);
  for (std::size_t at = kSignature; begin.fits(at) && !begin.is(at, "IDAT"); at = begin.after(at))
    if (begin.is(at, kExif)) return begin.orientation(at);
  const std::string_view text(reinterpret_cast<const char*>(last.data()), last.size());
  constexpr std::size_t kLength = 4;  // before the name
  for (std::size_t name = text.find(kExif, kLength); name != std::string_view::npos;
       name = text.find(kExif, name + 1)) {
    std::size_t at = name - kLength;
    while (end.fits(at) && !end.is(at, "IEND")) at = end.after(at);
    if (end.fits(at)) return end.orientation(name - kLength);
  }
  return 1;
}

}  // namespace

int exif_orientation(std::span<const std::uint8_t> first, std::span<const std::uint8_t> last) {
  if (begins_with(first, "\xff\xd8")) return of_jpeg(first);
  if (begins_with(first, "\x89PNG\r\n\x1a\n"))
    return of_png(first, last.last(std::min(last.size(), kLateExifBytes)));
  return 1;
}

void turn(std::span<const std::uint8_t> stored, const ImageShape& shape, int orientation,
          std::span<std::uint8_t> shown) {
  CHECK(orientation >= 1 && orientation <= 8 && static_cast<std::int64_t>(stored.size()) == shape.bytes() &&
            shown.size() == stored.size(),
        "orientation {}, {} and {} bytes", orientation, stored.size(), shown.size());
  const std::int64_t height = shape.height, width = shape.width, channels = shape.channels;
  // Stored pixel (y, x) is shown at (down, right), with the two exchanged if the sides are swapped.
  const bool from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool from_bottom = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const std::int64_t shown_width = swaps_sides(orientation) ? height : width;
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      const std::int64_t down = from_bottom ? height - 1 - y : y, right = from_right ? width - 1 - x : x;
      const std::int64_t to =
          swaps_sides(orientation) ? right * shown_width + down : down * shown_width + right;
      std::copy_n(stored.data() + (y * width + x) * channels, channels, shown.data() + to * channels);
    }
  }
}

}  // namespace lockstep
