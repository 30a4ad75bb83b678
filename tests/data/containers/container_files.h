// SPDX-License-Identifier: Apache-2.0
//
// Writes TFRecord files and tar files of images.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/files/crc32c.h"
#include "tests/data/jpeg_files.h"

namespace lockstep {

inline Bytes as_bytes(const std::string& text) { return {text.begin(), text.end()}; }

// An image with this level of red in all pixels.
inline Bytes red_jpeg(std::uint8_t red) { return flat_jpeg({red, 90, 30}); }

inline void expect_red(const Dataset& dataset, std::int64_t index, int red, std::int32_t label) {
  Bytes image(static_cast<std::size_t>(dataset.image_shape().bytes()));
  EXPECT_EQ(dataset.read(index, image), label);
  EXPECT_EQ(dataset.label(index), label);
  EXPECT_NEAR(image[0], red, 3);
}

// ---- TFRecord: protocol buffers in frames

inline std::string varint(std::uint64_t value) {
  std::string text;
  for (; value >= 0x80; value >>= 7) text += static_cast<char>(value | 0x80);
  return text + static_cast<char>(value);
}
inline std::string field(int number, const std::string& text) {
  return varint(static_cast<std::uint64_t>(number) << 3 | 2) + varint(text.size()) + text;
}
inline std::string bytes_feature(const std::string& key, const std::string& value) {
  return field(1, field(1, key) + field(2, field(1, field(1, value))));
}
inline std::string bytes_feature(const std::string& key, const Bytes& value) {
  return bytes_feature(key, std::string(value.begin(), value.end()));
}
enum class Numbers { packed, single };
inline std::string number_feature(const std::string& key, std::uint64_t value,
                                  Numbers how = Numbers::packed) {
  const std::string list = how == Numbers::packed ? field(1, varint(value)) : varint(1 << 3) + varint(value);
  return field(1, field(1, key) + field(2, field(3, list)));
}
inline std::string framed(const std::string& data) {
  const std::uint64_t length = data.size();
  std::string frame(reinterpret_cast<const char*>(&length), sizeof(length));
  const auto add_crc = [&](std::string_view of) {
    const std::uint32_t crc = masked_crc32c(of);
    frame.append(reinterpret_cast<const char*>(&crc), sizeof(crc));
  };
  add_crc(std::string(frame));
  frame += data;
  add_crc(data);
  return frame;
}
inline std::string example(const std::string& features) { return framed(field(1, features)); }

// ---- Tar: ustar members

inline std::string tar_member(const std::string& name, const std::string& data, char type = '0') {
  std::string header(512, '\0');
  const auto put = [&](std::size_t at, const std::string& text) { header.replace(at, text.size(), text); };
  put(0, name.substr(0, 100));
  put(124, fmt::format("{:011o}", data.size()));
  header[156] = type;
  put(257, std::string("ustar\0", 6) + "00");
  put(148, std::string(8, ' '));
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(148, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
  std::string padded = data;
  padded.resize((data.size() + 511) / 512 * 512);
  return header + padded;
}
inline std::string tar_member(const std::string& name, const Bytes& data) {
  return tar_member(name, std::string(data.begin(), data.end()));
}
inline std::string tar_sample(const std::string& key, const Bytes& image, const std::string& label) {
  return tar_member(key + ".jpg", image) + tar_member(key + ".cls", label);
}
inline const std::string kTarEnd(1024, '\0');

}  // namespace lockstep
