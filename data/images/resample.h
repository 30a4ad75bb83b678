// SPDX-License-Identifier: Apache-2.0
//
// Resizes images: bilinear, with the filter widened when shrinking (antialias), as in Pillow's resize with
// BILINEAR and torchvision's with antialias. Rows first, then columns, in fixed point, rounded to bytes in
// between: the same bytes on every machine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "data/dataset.h"

namespace lockstep {

// A box in pixels, whole or not. Image pixels beside it contribute to its edges, as if the whole image were
// resized first and cropped afterwards.
struct ImageBox {
  double y = 0, x = 0, height = 0, width = 0;
};

// uint8 [H, W, C] with a row stride of row_bytes.
struct ImageView {
  const std::uint8_t* pixels = nullptr;
  ImageShape shape;
  std::int64_t row_bytes = 0;
  // The part whose pixels contribute; a pixel on its border counts by its share inside. None: the whole
  // image.
  std::optional<ImageBox> counted = {};

  static ImageView of(std::span<const std::uint8_t> pixels, const ImageShape& shape) {
    return {.pixels = pixels.data(), .shape = shape, .row_bytes = shape.width * shape.channels};
  }
  // A box of whole pixels.
  ImageView part(std::int64_t y, std::int64_t x, std::int64_t height, std::int64_t width) const {
    return {.pixels = pixels + y * row_bytes + x * shape.channels,
            .shape = {.height = height, .width = width, .channels = shape.channels},
            .row_bytes = row_bytes};
  }
};

// Resizes the box, which lies within the image, to `to`: uint8 [H, W, C] of `shape`, with the image's
// channels.
void resample(const ImageView& image, const ImageBox& box, const ImageShape& shape,
              std::span<std::uint8_t> to);

}  // namespace lockstep
