// SPDX-License-Identifier: Apache-2.0
#include "tests/data/jpeg_files.h"

#include <algorithm>
#include <random>
#include <span>
#include <utility>

#include <gtest/gtest.h>

#include "core/error.h"

namespace lockstep {

Bytes encode(const ImageShape& shape, const Bytes& pixels, const Encoding& encoding) {
  const tjhandle compressor = tjInitCompress();
  unsigned char* buffer = nullptr;
  unsigned long size = 0;
  const int result =
      tjCompress2(compressor, pixels.data(), static_cast<int>(shape.width), 0, static_cast<int>(shape.height),
                  encoding.format, &buffer, &size, encoding.subsampling, 95, encoding.flags);
  CHECK(result == 0, "{}", tjGetErrorStr2(compressor));
  Bytes bytes(buffer, buffer + size);
  tjFree(buffer);
  tjDestroy(compressor);
  return bytes;
}

Bytes encode(const ImageShape& shape, const Bytes& pixels) {
  return encode(shape, pixels,
                shape.channels == 1 ? Encoding{.format = TJPF_GRAY, .subsampling = TJSAMP_GRAY} : Encoding{});
}

Bytes decode(const Bytes& jpeg, const ImageShape& shape) {
  const tjhandle decompressor = tjInitDecompress();
  Bytes pixels(static_cast<std::size_t>(shape.bytes()));
  const int result = tjDecompress2(decompressor, jpeg.data(), jpeg.size(), pixels.data(),
                                   static_cast<int>(shape.width), 0, static_cast<int>(shape.height),
                                   shape.channels == 1 ? TJPF_GRAY : TJPF_RGB, TJFLAG_ACCURATEDCT);
  CHECK(result == 0, "{}", tjGetErrorStr2(decompressor));
  tjDestroy(decompressor);
  return pixels;
}

Bytes flat(const ImageShape& shape, const Bytes& colour) {
  Bytes pixels(static_cast<std::size_t>(shape.bytes()));
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = colour[i % colour.size()];
  return pixels;
}
Bytes flat_jpeg(const Bytes& colour) {
  const ImageShape shape = colour.size() == 1 ? kGray : kColour;
  return encode(shape, flat(shape, colour));
}

Bytes with_sound_header_only(Bytes jpeg) {
  const Bytes start_of_scan = {0xFF, 0xDA};
  const auto scan = std::search(jpeg.begin(), jpeg.end(), start_of_scan.begin(), start_of_scan.end());
  CHECK(scan != jpeg.end());
  scan[6] = 0x33;  // the first component's Huffman tables: there are only 0 and 1
  return jpeg;
}

Bytes noise(const ImageShape& shape, std::uint32_t seed) {
  std::mt19937 random(seed);
  Bytes pixels(static_cast<std::size_t>(shape.bytes()));
  for (std::uint8_t& pixel : pixels) pixel = static_cast<std::uint8_t>(random());
  return pixels;
}

Bytes exif(int orientation, bool little_endian) {
  Bytes tiff(2, static_cast<std::uint8_t>(little_endian ? 'I' : 'M'));
  const auto number = [&](int value, int bytes) {
    for (int i = 0; i < bytes; ++i)
      tiff.push_back(static_cast<std::uint8_t>(value >> 8 * (little_endian ? i : bytes - 1 - i)));
  };
  number(42, 2);
  number(8, 4);
  number(2, 2);
  for (const auto& [tag, value] : {std::pair(0x0100, 640), std::pair(0x0112, orientation)}) {
    number(tag, 2);
    number(3, 2);
    number(1, 4);
    number(value, 2);
    number(0, 2);
  }
  number(0, 4);
  return tiff;
}
Bytes with_exif(Bytes jpeg, int orientation, bool little_endian) {
  const Bytes tiff = exif(orientation, little_endian);
  const auto length = static_cast<std::uint8_t>(8 + tiff.size());
  Bytes segment = {0xff, 0xe1, 0, length, 'E', 'x', 'i', 'f', 0, 0};
  segment.insert(segment.end(), tiff.begin(), tiff.end());
  jpeg.insert(jpeg.begin() + 2, segment.begin(), segment.end());
  return jpeg;
}

Bytes read(const Dataset& dataset, std::int64_t index) {
  constexpr std::size_t kGuard = 256;
  const auto size = static_cast<std::size_t>(dataset.image_shape().bytes());
  Bytes memory(size + 2 * kGuard, 0xA5);
  const auto check = [&] {
    for (std::size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(memory[i], 0xA5);
      EXPECT_EQ(memory[kGuard + size + i], 0xA5);
    }
  };
  try {
    dataset.read(index, std::span(memory).subspan(kGuard, size));
  } catch (...) {
    check();
    throw;
  }
  check();
  return Bytes(memory.begin() + kGuard, memory.end() - kGuard);
}

Bytes with_claimed_size(Bytes jpeg, std::uint16_t height, std::uint16_t width) {
  const Bytes marker = {0xFF, 0xC0};
  const auto frame = std::search(jpeg.begin(), jpeg.end(), marker.begin(), marker.end());
  CHECK(frame != jpeg.end());
  frame[5] = static_cast<std::uint8_t>(height >> 8);
  frame[6] = static_cast<std::uint8_t>(height);
  frame[7] = static_cast<std::uint8_t>(width >> 8);
  frame[8] = static_cast<std::uint8_t>(width);
  return jpeg;
}

}  // namespace lockstep
