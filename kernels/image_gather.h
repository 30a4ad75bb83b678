// SPDX-License-Identifier: Apache-2.0
//
// Gathers a batch's images from a set of images in the same device's memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

struct ImageGather {
  std::int64_t batch = 0;
  std::int64_t image_bytes = 0;
  const std::byte* images = nullptr;   // contiguous images; the first is aligned to kAlignment
  const std::int32_t* rows = nullptr;  // [batch]: index of each image; below 0: zeros instead
  std::byte* output = nullptr;         // [batch] contiguous images; does not overlap images
};

}  // namespace lockstep
