// SPDX-License-Identifier: Apache-2.0
#include "tests/data/idx_files.h"

#include <initializer_list>

#include <zlib.h>

#include "core/error.h"

namespace lockstep {
namespace {

Bytes with_header(std::initializer_list<std::uint32_t> words, const Bytes& body) {
  Bytes bytes;
  for (const std::uint32_t word : words) {
    for (const int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<std::uint8_t>(word >> shift));
  }
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

}  // namespace

Bytes idx_images(std::uint32_t count, std::uint32_t height, std::uint32_t width, const Bytes& pixels) {
  return with_header({0x803, count, height, width}, pixels);
}

Bytes idx_colour_images(std::uint32_t count, const ImageShape& shape, const Bytes& pixels) {
  const auto word = [](std::int64_t size) { return static_cast<std::uint32_t>(size); };
  return with_header({0x804, count, word(shape.height), word(shape.width), word(shape.channels)}, pixels);
}

Bytes idx_labels(const Bytes& labels) {
  return with_header({0x801, static_cast<std::uint32_t>(labels.size())}, labels);
}

Bytes gzip(const Bytes& bytes) {
  z_stream stream = {};
  CHECK(deflateInit2(&stream, 9, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  Bytes packed(deflateBound(&stream, bytes.size()));
  stream.next_in = const_cast<Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = packed.data();
  stream.avail_out = static_cast<uInt>(packed.size());
  CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

}  // namespace lockstep
