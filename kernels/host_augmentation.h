// SPDX-License-Identifier: Apache-2.0
//
// HostAugmentation: the part of an augmentation that works on the bytes of one image (color, crop and flip),
// on any host thread. The device does the part that follows the normalisation, erasing and mixing
// (Augmentation::behind_bytes()). Both together give the same bits as the device alone.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/color_jitter_functors.h"
#include "kernels/functors.h"
#include "kernels/image_input.h"

namespace lockstep {

class HostAugmentation {
 public:
  // For uint8 images [H, W, C]. Throws ConfigError for invalid settings.
  HostAugmentation(const Augmentation& augmentation, std::int64_t height, std::int64_t width,
                   std::int64_t channels);

  // Augments the image in place for the sample's epoch. A mask, the labels of its pixels, is cropped and
  // flipped with it; pixels beside the image become kIgnoredPixel. Thread-safe.
  void operator()(SampleId sample, std::span<std::uint8_t> image, std::span<std::uint8_t> mask = {}) const;

 private:
  void place(SampleId sample, std::span<std::uint8_t> image, std::span<std::uint8_t> mask) const;

  std::int64_t pixels_;
  std::int64_t channels_;
  bool colors_;
  bool places_;
  Jitter jitter_;
  Augment augment_;
};

}  // namespace lockstep
