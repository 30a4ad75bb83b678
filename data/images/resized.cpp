// SPDX-License-Identifier: Apache-2.0
#include "data/images/resized.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/random.h"
#include "data/sets/wrapped.h"

namespace lockstep {
namespace {

// The random numbers of one sample in one epoch.
class Uniforms {
 public:
  Uniforms(const Draw& draw, std::int64_t index)
      : key_(key_for(draw.seed, "random resized crop")),
        counter_{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(draw.epoch), 0, 0} {}

  // In [0, 1).
  double next() {
    if (used_ == 4) {
      words_ = philox(counter_, key_);
      ++counter_[2];
      used_ = 0;
    }
    return static_cast<double>(words_[used_++]) * 0x1p-32;
  }
  double next(double low, double high) { return low + (high - low) * next(); }
  // In [0, most].
  std::int64_t whole(std::int64_t most) {
    return std::min(most, static_cast<std::int64_t>(next() * static_cast<double>(most + 1)));
  }

 private:
  PhiloxKey key_;
  PhiloxCounter counter_;
  PhiloxCounter words_ = {};
  std::size_t used_ = 4;
};

constexpr double kLeastArea = 0.08, kMostArea = 1;
constexpr double kLeastRatio = 3.0 / 4, kMostRatio = 4.0 / 3;  // of width to height

// The largest centered box with an allowed ratio.
ImageBox widest_box(const ImageShape& image) {
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width);
  double cut_height = height, cut_width = width;
  if (width < kLeastRatio * height) cut_height = std::round(width / kLeastRatio);
  if (width > kMostRatio * height) cut_width = std::round(height * kMostRatio);
  return {.y = std::floor((height - cut_height) / 2),
          .x = std::floor((width - cut_width) / 2),
          .height = cut_height,
          .width = cut_width};
}

class Resized final : public Wrapped {
 public:
  Resized(std::unique_ptr<Dataset> images, const ResizeOptions& options)
      : Wrapped(std::move(images)), options_(options) {
    shape_ = {.height = options.size, .width = options.size, .channels = dataset().image_shape().channels};
  }

  ImageShape image_shape() const override { return shape_; }
  // The nearest pixel of the part that read() shows.
  void read_mask(std::int64_t index, std::span<std::uint8_t> mask) const override {
    thread_local std::vector<std::uint8_t> own;
    const ImageShape whole = dataset().read_own_mask(index, own);
    const ImageBox box = center_box(whole, options_);
    const auto nearest = [&](std::int64_t at, double begin, double cut, std::int64_t side) {
      const double place = begin + (static_cast<double>(at) + 0.5) * cut / static_cast<double>(options_.size);
      return std::clamp<std::int64_t>(static_cast<std::int64_t>(place), 0, side - 1);
    };
    for (std::int64_t y = 0; y < options_.size; ++y)
      for (std::int64_t x = 0; x < options_.size; ++x)
        mask[static_cast<std::size_t>(y * options_.size + x)] =
            own[static_cast<std::size_t>(nearest(y, box.y, box.height, whole.height) * whole.width +
                                         nearest(x, box.x, box.width, whole.width))];
  }
  bool draws() const override { return options_.random_crop; }
  bool decodes() const override { return true; }
  bool resizes() const override { return true; }
  // Stored images, and images in the device's memory, have their own sizes.
  ImageCoding coding() const override { return ImageCoding::pixels; }
  std::span<const std::byte> on_device() const override { return {}; }

  std::int32_t read(std::int64_t index, std::span<std::uint8_t> image) const override {
    return read_box(index, image, Cut::after_resize,
                    [&](const ImageShape& own) { return center_box(own, options_); });
  }
  std::int32_t read_augmented(std::int64_t index, const Draw& draw,
                              std::span<std::uint8_t> image) const override {
    if (!options_.random_crop) return read(index, image);
    return read_box(index, image, Cut::before_resize,
                    [&](const ImageShape& own) { return random_box(own, draw, index); });
  }

 private:
  // torchvision's RandomResizedCrop cuts a box of whole pixels out and resizes it. Resize and CenterCrop cut
  // afterwards, so that pixels beside the box contribute to its edges.
  enum class Cut { before_resize, after_resize };

  template <typename Choose>
  std::int32_t read_box(std::int64_t index, std::span<std::uint8_t> image, Cut cut, Choose choose) const {
    thread_local OwnSizeImage own;
    ImageBox box;
    // Decodes at least twice the wanted size, so that a reduction while decoding is not visible.
    const auto least = [&](const ImageShape& whole) {
      box = choose(whole);
      const auto scaled = [&](std::int64_t side, double of_box) {
        return static_cast<std::int64_t>(
            std::ceil(2 * static_cast<double>(options_.size) * static_cast<double>(side) / of_box));
      };
      return ImageShape{.height = scaled(whole.height, box.height), .width = scaled(whole.width, box.width)};
    };
    const std::int32_t label = dataset().read_own_size(index, least, own);
    draw_box(own, box, cut, image);
    return label;
  }

  // In a reduced image, pixels on the border of a box that is cut before are weighted by their share inside.
  void draw_box(const OwnSizeImage& own, const ImageBox& box, Cut cut, std::span<std::uint8_t> image) const {
    ImageView whole = ImageView::of(own.pixels, own.shape);
    const double scale = 1 / static_cast<double>(own.reduction);
    const ImageBox scaled{
        .y = box.y * scale, .x = box.x * scale, .height = box.height * scale, .width = box.width * scale};
    if (cut == Cut::after_resize) {
      whole.counted = {.height = static_cast<double>(own.whole.height) * scale,
                       .width = static_cast<double>(own.whole.width) * scale};
      return resample(whole, scaled, shape_, image);
    }
    const double top = std::floor(scaled.y), left = std::floor(scaled.x);
    ImageView part = whole.part(static_cast<std::int64_t>(top), static_cast<std::int64_t>(left),
                                static_cast<std::int64_t>(std::ceil(scaled.y + scaled.height) - top),
                                static_cast<std::int64_t>(std::ceil(scaled.x + scaled.width) - left));
    const ImageBox moved{
        .y = scaled.y - top, .x = scaled.x - left, .height = scaled.height, .width = scaled.width};
    part.counted = moved;
    resample(part, moved, shape_, image);
  }

  ResizeOptions options_;
  ImageShape shape_;
};

}  // namespace

ImageBox random_box(const ImageShape& image, const Draw& draw, std::int64_t index) {
  Uniforms uniforms(draw, index);
  const double area = static_cast<double>(image.height) * static_cast<double>(image.width);
  constexpr int kTries = 10;
  for (int i = 0; i < kTries; ++i) {
    const double cut = area * uniforms.next(kLeastArea, kMostArea);
    const double ratio = std::exp(uniforms.next(std::log(kLeastRatio), std::log(kMostRatio)));
    const auto width = static_cast<std::int64_t>(std::round(std::sqrt(cut * ratio)));
    const auto height = static_cast<std::int64_t>(std::round(std::sqrt(cut / ratio)));
    if (width < 1 || width > image.width || height < 1 || height > image.height) continue;
    const std::int64_t y = uniforms.whole(image.height - height), x = uniforms.whole(image.width - width);
    return {.y = static_cast<double>(y),
            .x = static_cast<double>(x),
            .height = static_cast<double>(height),
            .width = static_cast<double>(width)};
  }
  return widest_box(image);
}

ImageBox center_box(const ImageShape& image, const ResizeOptions& options) {
  const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width);
  const auto size = static_cast<double>(options.size);
  const double shorter = std::round(size / options.center_share);
  const double longer = std::floor(shorter * std::max(height, width) / std::min(height, width));
  const double resized_height = height <= width ? shorter : longer;
  const double resized_width = height <= width ? longer : shorter;
  const double down = height / resized_height, across = width / resized_width;
  return {.y = std::nearbyint((resized_height - size) / 2) * down,
          .x = std::nearbyint((resized_width - size) / 2) * across,
          .height = size * down,
          .width = size * across};
}

std::unique_ptr<Dataset> resized(std::unique_ptr<Dataset> dataset, const ResizeOptions& options) {
  return std::make_unique<Resized>(std::move(dataset), options);
}

}  // namespace lockstep
