// SPDX-License-Identifier: Apache-2.0
//
// A batch's images, gathered from a set of images that lies in the same device's memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

struct ImageGather {
  std::int64_t batch = 0;
  std::int64_t image_bytes = 0;
  const std::byte* images = nullptr;   // one behind the other, from a multiple of kAlignment on
  const std::int32_t* rows = nullptr;  // [batch]: which of them; below 0: zeros instead
  std::byte* output = nullptr;         // [batch] images, likewise; apart from images
};

}  // namespace lockstep
