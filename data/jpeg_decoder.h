// SPDX-License-Identifier: Apache-2.0
//
// JpegDecoder: JPEG images in memory, decoded by libjpeg-turbo. One serves many images, of one thread.
//
// CMYK and YCCK images are converted without a colour profile, their values taken as Adobe's programs write
// them (255 is no ink), as Pillow does. An image that TurboJPEG decodes with a warning (stray bytes, a
// missing end) is taken as far as it goes; what is missing of it is gray.
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

// How much of a header is looked at: all of it; or what jpeg_header.h reads, where decoding follows.
enum class HeaderCheck { whole, size };

class JpegDecoder {
 public:
  // Reads the header of an image, whose bytes stay where they are until it is decoded: its height and width,
  // and 1 channel for grayscale, 3 for any other. name: for messages. Throws DataError for what is no JPEG
  // image.
  ImageShape open(std::string_view name, std::span<const std::uint8_t> image, HeaderCheck check);
  // The same of an image's first bytes alone; nothing where these do not tell.
  std::optional<ImageShape> open_part(std::string_view name, std::span<const std::uint8_t> part);

  // Whether decode() reduces what was opened by exactly 2, 4 or 8 where it is given the shape rounded up. Of
  // images a few pixels wide several reductions have the same shape, and TurboJPEG takes the least of them.
  bool reduces_by(std::int64_t reduction) const;
  // What open() was given. The shape has the image's height and width, or a half, a quarter or an eighth of
  // both, rounded up, and 1 or 3 channels of either kind; pixels are [H, W, C]. Throws DataError.
  void decode(const ImageShape& shape, std::span<std::uint8_t> pixels);

  // What TurboJPEG warned of since open(); empty: nothing.
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
  std::vector<std::uint8_t> small_;  // of a small one
  bool reusable_ = false;            // the decompressor is there, and has met no error
  int width_ = 0;
  int height_ = 0;
  int colours_ = 0;  // TJCS
  std::string warning_;
};

// pixels: [H, W, C] of 1 or 3 channels. quality: 1 to 100, as libjpeg counts it; colour in half the
// resolution.
std::vector<std::uint8_t> encode_jpeg(const ImageShape& shape, std::span<const std::uint8_t> pixels,
                                      int quality);

}  // namespace lockstep
