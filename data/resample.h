// SPDX-License-Identifier: Apache-2.0
//
// Images of another size: bilinear, and where they shrink over as many pixels as are drawn into one, as
// Pillow's resize does it with its BILINEAR filter and torchvision's with antialias. Rows first, then
// columns, in fixed point, rounded to bytes in between: the same bytes on every machine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "data/dataset.h"

namespace lockstep {

// In pixels, whole or not. What lies beside it within the image is drawn into its edges, as it is where a
// larger image was resized first and cut then.
struct ImageBox {
  double y = 0, x = 0, height = 0, width = 0;
};

// uint8 [H, W, C], rows of which may be further apart than they are long.
struct ImageView {
  const std::uint8_t* pixels = nullptr;
  ImageShape shape;
  std::int64_t row_bytes = 0;
  // What of it is drawn: a pixel on its border counts by the share that lies in it. Nothing: all.
  std::optional<ImageBox> counted = {};

  static ImageView of(std::span<const std::uint8_t> pixels, const ImageShape& shape) {
    return {.pixels = pixels.data(), .shape = shape, .row_bytes = shape.width * shape.channels};
  }
  // Of whole pixels.
  ImageView part(std::int64_t y, std::int64_t x, std::int64_t height, std::int64_t width) const {
    return {.pixels = pixels + y * row_bytes + x * shape.channels,
            .shape = {.height = height, .width = width, .channels = shape.channels},
            .row_bytes = row_bytes};
  }
};

// The box, within the image, becomes all of `to`, [H, W, C] with the image's channels.
void resample(const ImageView& image, const ImageBox& box, const ImageShape& shape,
              std::span<std::uint8_t> to);

}  // namespace lockstep
