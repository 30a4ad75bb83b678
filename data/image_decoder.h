// SPDX-License-Identifier: Apache-2.0
//
// ImageDecoder: JPEG and PNG images in memory, told apart by their first bytes. Each thread has one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "data/dataset.h"
#include "data/jpeg_decoder.h"

namespace lockstep {

class ImageDecoder {
 public:
  static ImageDecoder& of_this_thread();

  // Reads the header of an image, whose bytes stay where they are until it is decoded: its height and width
  // as it is shown (data/orientation.h), and 1 channel for grayscale, 3 for any other. name: for messages.
  // Throws DataError for what is neither.
  ImageShape open(std::string_view name, std::span<const std::uint8_t> image, ExifOrientation exif,
                  HeaderCheck check = HeaderCheck::whole);
  // The same of an image's first bytes alone; nothing where these do not tell.
  std::optional<ImageShape> open_part(std::string_view name, std::span<const std::uint8_t> part,
                                      ExifOrientation exif);
  // The orientation of the last image, 1 to 8; 1 if EXIF is not applied.
  int orientation() const { return orientation_; }
  // Whether the last image is animated; its first frame is what is read.
  bool animated() const { return animated_; }

  // By how much what was opened can be reduced when it is decoded, so that it keeps so many pixels in both
  // directions: 1, or for a JPEG image 2, 4 or 8. One that is turned has its part pixels at other sides, and
  // is reduced only where there are none.
  std::int64_t largest_reduction(std::int64_t least_height, std::int64_t least_width) const;
  ImageShape reduced(std::int64_t reduction) const;
  // What was opened, in one of these sizes; 1 or 3 channels of either kind. Throws DataError.
  void decode(const ImageShape& shape, std::span<std::uint8_t> pixels);
  // What was wrong with it, where it was decoded all the same; empty: nothing.
  std::string_view warning() const { return png_ ? std::string_view() : jpeg_.warning(); }

 private:
  void decode_stored(const ImageShape& shape, std::span<std::uint8_t> pixels);

  JpegDecoder jpeg_;
  bool png_ = false;
  std::string name_;
  std::span<const std::uint8_t> image_;
  int orientation_ = 1;
  bool animated_ = false;
  ImageShape shape_;                  // as it is shown
  std::vector<std::uint8_t> stored_;  // pixels of an image that is turned
};

// What this thread's decoder has opened, in the smallest size that is large enough (Dataset::read_own_size).
// Throws DataError.
void decode_own_size(const ImageShape& whole, std::int64_t channels, const LeastSize& least,
                     OwnSizeImage& image);

// Of an image that is not resized and has not the size of the first. name: for the message.
DataError of_another_size(std::string_view name, const ImageShape& found, const ImageShape& expected);

}  // namespace lockstep
