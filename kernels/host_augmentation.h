// SPDX-License-Identifier: Apache-2.0
//
// HostAugmentation: what of an augmentation can be done to the bytes of an image, one image at a time, by any
// thread of the host: color, crop and flip. Erasing and mixing, which come behind the normalisation, are left
// to the device (Augmentation::behind_bytes()). Both together give the bits of the device alone.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/color_jitter_functors.h"
#include "kernels/functors.h"
#include "kernels/image_input.h"

namespace lockstep {

class HostAugmentation {
 public:
  // Of images of uint8, [H, W, C]. Throws ConfigError for what makes no sense of them.
  HostAugmentation(const Augmentation& augmentation, std::int64_t height, std::int64_t width,
                   std::int64_t channels);

  // The image as it is in this epoch, in its place. Thread-safe.
  void operator()(SampleId sample, std::span<std::uint8_t> image) const;

 private:
  void place(SampleId sample, std::span<std::uint8_t> image) const;

  std::int64_t pixels_;
  std::int64_t channels_;
  bool colors_;
  bool places_;
  Jitter jitter_;
  Augment augment_;
};

}  // namespace lockstep
