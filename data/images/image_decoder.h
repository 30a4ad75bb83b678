// SPDX-License-Identifier: Apache-2.0
//
// ImageDecoder: decodes JPEG and PNG images in memory, recognised by their first bytes. One per thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "data/dataset.h"
#include "data/images/jpeg_decoder.h"

namespace lockstep {

class ImageDecoder {
 public:
  static ImageDecoder& of_this_thread();

  // Reads an image's header. The bytes must stay valid until the image is decoded. Returns height and width
  // as shown (data/images/orientation.h), and 1 channel for grayscale or 3 for any other. name: for messages.
  // Throws DataError for bytes that are neither JPEG nor PNG.
  ImageShape open(std::string_view name, std::span<const std::uint8_t> image, ExifOrientation exif,
                  HeaderCheck check = HeaderCheck::whole);
  // The same from an image's first bytes only; none if they do not hold the whole header. last: the last
  // kLateExifBytes of a PNG image (data/images/orientation.h).
  std::optional<ImageShape> open_part(std::string_view name, std::span<const std::uint8_t> part,
                                      std::span<const std::uint8_t> last, ExifOrientation exif);
  // The orientation of the last image, 1 to 8; 1 if EXIF is not applied.
  int orientation() const { return orientation_; }
  // Returns true if the last image is animated; only its first frame is decoded.
  bool animated() const { return animated_; }

  // The largest reduction with which the opened image keeps at least this height and width: 1, or for a JPEG
  // image 2, 4 or 8. An image turned by EXIF is reduced only if its sides are multiples of the reduction:
  // otherwise its partial pixels would be at the wrong edges.
  std::int64_t largest_reduction(std::int64_t least_height, std::int64_t least_width) const;
  ImageShape reduced(std::int64_t reduction) const;
  // Decodes the opened image in one of these sizes, to 1 or 3 channels. Throws DataError.
  void decode(const ImageShape& shape, std::span<std::uint8_t> pixels);
  // The damage of an image that was decoded nevertheless; empty: none.
  std::string_view warning() const { return png_ ? std::string_view() : jpeg_.warning(); }

 private:
  void decode_stored(const ImageShape& shape, std::span<std::uint8_t> pixels);

  JpegDecoder jpeg_;
  bool png_ = false;
  std::string name_;
  std::span<const std::uint8_t> image_;
  int orientation_ = 1;
  bool animated_ = false;
  ImageShape shape_;                  // as shown
  std::vector<std::uint8_t> stored_;  // pixels before they are turned
};

// Decodes the image that this thread's decoder has opened, in the smallest size that is large enough
// (Dataset::read_own_size). Throws DataError.
void decode_own_size(const ImageShape& whole, std::int64_t channels, const LeastSize& least,
                     OwnSizeImage& image);

// The error for an image that is not resized and differs in size from the first training image. name: for the
// message.
DataError of_another_size(std::string_view name, const ImageShape& found, const ImageShape& expected);
// For an image of more than kMostImageBytes of pixels.
DataError too_large(std::string_view name, const ImageShape& shape);

}  // namespace lockstep
