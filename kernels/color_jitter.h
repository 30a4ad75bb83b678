// SPDX-License-Identifier: Apache-2.0
//
// torchvision's ColorJitter: brightness, contrast, saturation and hue of each image, in random order. The
// result for an image depends only on (key, epoch, sample), not on rank, thread or place in the batch.
#pragma once

#include <cstdint>

#include "core/random.h"
#include "core/sample_id.h"

namespace lockstep {

// Factors are uniform in [max(0, 1 - amount), 1 + amount]; the hue shift is uniform in [-hue, hue], as a
// fraction of the color circle; 0: off. Brightness multiplies. Contrast and saturation scale the distance to
// the image's mean gray or to the pixel's own gray. Each operation clamps to [0, 255], and the last result is
// rounded. Gray is 0.2989 R + 0.587 G + 0.114 B. Images of one channel have no saturation and no hue.
struct ColorJitter {
  double brightness = 0;
  double contrast = 0;
  double saturation = 0;
  double hue = 0;  // up to 1/2

  bool any() const { return brightness > 0 || contrast > 0 || saturation > 0 || hue > 0; }
};

struct ColorJitterArguments {
  std::int64_t batch = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 0;  // 1 or 3
  ColorJitter how;
  PhiloxKey key = {};
  const std::uint8_t* images = nullptr;  // [N, H, W, C]
  const SampleId* samples = nullptr;     // [N]
  std::uint8_t* output = nullptr;        // [N, H, W, C], does not overlap images
};

}  // namespace lockstep
