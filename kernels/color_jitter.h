// SPDX-License-Identifier: Apache-2.0
//
// torchvision's ColorJitter: brightness, contrast, saturation and hue of each image, in an order that is
// drawn, too. What happens to an image depends on (key, epoch, sample) and on no rank, thread or place in a
// batch.
#pragma once

#include <cstdint>

#include "core/random.h"
#include "core/sample_id.h"

namespace lockstep {

// Factors are drawn evenly from [max(0, 1 - amount), 1 + amount], and the hue is turned by a share of the
// circle from [-hue, hue]; 0: none. Brightness multiplies; contrast and saturation move away from the image's
// mean gray or the pixel's own, or towards it; each ends in [0, 255], and the last is rounded. Gray is 0.2989
// R + 0.587 G + 0.114 B. Images of one channel have no saturation and no hue.
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
  std::uint8_t* output = nullptr;        // the same, apart from images
};

}  // namespace lockstep
