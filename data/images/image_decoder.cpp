// SPDX-License-Identifier: Apache-2.0
#include "data/images/image_decoder.h"

#include <algorithm>
#include <utility>

#include "data/images/orientation.h"
#include "data/images/png.h"

namespace lockstep {
namespace {

// Below this side the resampling filter is too coarse, and the last pixel, which may lie partly outside the
// image, becomes visible. Decoding such an image in full is cheap.
constexpr std::int64_t kLeastReducedSide = 16;

// Converts the stored size to the shown size, and back.
ImageShape other_way(ImageShape shape, int orientation) {
  if (swaps_sides(orientation)) std::swap(shape.height, shape.width);
  return shape;
}

}  // namespace

ImageDecoder& ImageDecoder::of_this_thread() {
  thread_local ImageDecoder decoder;
  return decoder;
}

ImageShape ImageDecoder::open(std::string_view name, std::span<const std::uint8_t> image,
                              ExifOrientation exif, HeaderCheck check) {
  png_ = is_png(image);
  name_ = name;
  image_ = image;
  orientation_ = exif == ExifOrientation::apply ? exif_orientation(image) : 1;
  animated_ = is_animated_png(image);
  return shape_ = other_way(png_ ? png_shape(name, image) : jpeg_.open(name, image, check), orientation_);
}

std::optional<ImageShape> ImageDecoder::open_part(std::string_view name, std::span<const std::uint8_t> part,
                                                  std::span<const std::uint8_t> last, ExifOrientation exif) {
  if (is_png(part) && !holds_png_header(part)) return std::nullopt;
  const std::optional<ImageShape> stored = is_png(part) ? png_shape(name, part) : jpeg_.open_part(name, part);
  if (!stored) return std::nullopt;
  orientation_ = exif == ExifOrientation::apply ? exif_orientation(part, last) : 1;
  animated_ = is_animated_png(part);
  return other_way(*stored, orientation_);
}

std::int64_t ImageDecoder::largest_reduction(std::int64_t least_height, std::int64_t least_width) const {
  std::int64_t largest = 1;
  if (png_) return largest;
  for (const std::int64_t reduction : {2, 4, 8}) {
    const ImageShape size = reduced(reduction);
    if (orientation_ != 1 && (shape_.height % reduction != 0 || shape_.width % reduction != 0)) continue;
    if (size.height >= std::max(least_height, kLeastReducedSide) &&
        size.width >= std::max(least_width, kLeastReducedSide) && jpeg_.reduces_by(reduction))
      largest = reduction;
  }
  return largest;
}

ImageShape ImageDecoder::reduced(std::int64_t reduction) const {
  return {.height = (shape_.height + reduction - 1) / reduction,
          .width = (shape_.width + reduction - 1) / reduction,
          .channels = shape_.channels};
}

void ImageDecoder::decode(const ImageShape& shape, std::span<std::uint8_t> pixels) {
  CHECK(shape.channels == 1 || shape.channels == 3, "{}: decoded to {} channels", name_, shape.channels);
  if (orientation_ == 1) return decode_stored(shape, pixels);
  const ImageShape stored = other_way(shape, orientation_);
  stored_.resize(static_cast<std::size_t>(stored.bytes()));
  decode_stored(stored, stored_);
  turn(stored_, stored, orientation_, pixels);
}

void ImageDecoder::decode_stored(const ImageShape& shape, std::span<std::uint8_t> pixels) {
  if (png_) return decode_png(name_, image_, shape, pixels);
  jpeg_.decode(shape, pixels);
}

void decode_own_size(const ImageShape& whole, std::int64_t channels, const LeastSize& least,
                     OwnSizeImage& image) {
  ImageDecoder& decoder = ImageDecoder::of_this_thread();
  const ImageShape wanted = least(whole);
  image.whole = whole;
  image.reduction = decoder.largest_reduction(wanted.height, wanted.width);
  image.shape = decoder.reduced(image.reduction);
  image.shape.channels = image.whole.channels = channels;
  image.pixels.resize(static_cast<std::size_t>(image.shape.bytes()));
  decoder.decode(image.shape, image.pixels);
}

DataError too_large(std::string_view name, const ImageShape& shape) {
  return DataError(fmt::format(
      "{}: the image is {} pixels wide and {} high; the limit is {} bytes of pixels; make it smaller", name,
      shape.width, shape.height, kMostImageBytes));
}

DataError of_another_size(std::string_view name, const ImageShape& found, const ImageShape& expected) {
  return DataError(fmt::format(
      "{}: the image is {} pixels wide and {} high, expected {} and {} as the first "
      "training image; resize it, or train with data.resize, which resizes all images to one size",
      name, found.width, found.height, expected.width, expected.height));
}

}  // namespace lockstep
