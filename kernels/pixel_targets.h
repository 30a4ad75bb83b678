// SPDX-License-Identifier: Apache-2.0
//
// Labels and weights of single pixels, from a batch's masks. With them each pixel is a sample for the loss
// (kernels/loss.h) and for the class counts (kernels/class_counts.h). All memory is device memory.
#pragma once

#include <cstdint>

namespace lockstep {

// The value of a mask's pixels that belong to no class: they have no part in loss, gradient and counts.
inline constexpr std::uint8_t kIgnoredPixel = 255;
// Classes of a mask are below this.
inline constexpr std::int64_t kMostMaskClasses = kIgnoredPixel;

struct PixelTargets {
  std::int64_t batch = 0;
  std::int64_t pixels = 0;              // of an image
  const std::uint8_t* masks = nullptr;  // [batch, pixels]: classes, or kIgnoredPixel
  const float* weights = nullptr;       // [batch], of the images
  // True (training): an image's weight is shared equally by its pixels that are not ignored, so the sum over
  // pixels is the mean of each image. False (evaluation): each of them has weight 1 unless its image has
  // weight 0, so the mean is over pixels.
  bool share_weight = false;
  // Outputs, [batch, pixels]. Ignored pixels have label 0 and weight 0.
  std::int32_t* labels = nullptr;
  float* pixel_weights = nullptr;
};

}  // namespace lockstep
