// SPDX-License-Identifier: Apache-2.0
//
// JpegDecoder: decodes JPEG images in memory with libjpeg-turbo. One decoder serves many images of one
// thread.
//
// CMYK and YCCK images are converted without a colour profile, with values as Adobe's programs write them
// (255 is no ink), as in Pillow. An image that TurboJPEG decodes with a warning (stray bytes, a missing end)
// is decoded as far as possible; missing pixels are gray.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace lockstep {

// How much of a header open() checks: all of it, or, if decoding follows, only what jpeg_header.h reads.
enum class HeaderCheck { whole, size };

class JpegDecoder {
 public:
  // Reads an image's header. The bytes must stay valid until the image is decoded. Returns height and width,
  // and 1 channel for grayscale or 3 for any other. name: for messages. Throws DataError if the bytes are no
  // JPEG image.
  ImageShape open(std::string_view name, std::span<const std::uint8_t> image, HeaderCheck check);
  // The same from an image's first bytes only; none if they do not hold the whole header.
  std::optional<ImageShape> open_part(std::string_view name, std::span<const std::uint8_t> part);

  // Returns true if decode() reduces the opened image by exactly `reduction` (2, 4 or 8) when given the
  // rounded-up shape. For images a few pixels wide several reductions have the same shape, and TurboJPEG
  // chooses the smallest one.
  bool reduces_by(std::int64_t reduction) const;
  // Decodes the opened image to pixels [H, W, C]. The shape has the image's height and width, or 1/2, 1/4 or
  // 1/8 of both, rounded up, and 1 or 3 channels, for grayscale and colour images alike. Throws DataError.
  void decode(const ImageShape& shape, std::span<std::uint8_t> pixels);

  // TurboJPEG's first warning since open(); empty if there is none.
  const std::string& warning() const { return warning_; }

 private:
  struct Destroy {
    void operator()(void* handle) const;
  };

  ImageShape shape() const;
  void renew();
  int parse_header();
  bool find_size();
  void decode_as(int format, const ImageShape& shape, std::uint8_t* pixels);
  void tolerate(int result);
  [[noreturn]] void fail(const std::string& what) const;

  std::unique_ptr<void, Destroy> decompressor_;
  std::string name_;
  std::span<const std::uint8_t> image_;
  std::vector<std::uint8_t> inks_;   // of a CMYK image
  std::vector<std::uint8_t> small_;  // pixels of a small image
  bool reusable_ = false;            // the decompressor exists and has had no error
  int width_ = 0;
  int height_ = 0;
  int colours_ = 0;  // TJCS
  std::string warning_;
};

// pixels: [H, W, C] of 1 or 3 channels. quality: 1 to 100, as in libjpeg. Chroma has half the resolution
// (4:2:0).
std::vector<std::uint8_t> encode_jpeg(const ImageShape& shape, std::span<const std::uint8_t> pixels,
                                      int quality);

}  // namespace lockstep
