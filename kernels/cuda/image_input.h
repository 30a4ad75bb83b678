// SPDX-License-Identifier: Apache-2.0
//
// Images from the loader, uint8 [N, H, W, C], to normalised NHWC activations in fp32 or a half type. Three
// channels become four, the last one zero: a convolution reads them in whole packs.
#pragma once

#include <array>
#include <cstdint>

#include "core/dtype.h"
#include "core/stream.h"
#include "kernels/backend.h"

namespace lockstep {

inline constexpr std::int64_t kMostImageChannels = 4;
// Of the activations.
constexpr std::int64_t padded_image_channels(std::int64_t channels) { return channels == 3 ? 4 : channels; }

// Throws ConfigError for more than kMostImageChannels channels, or statistics for another number.
void check_cuda_image_input(const ImageInput& input);

// images and output are [N, H, W, C] and [N, H, W, padded_image_channels(C)].
struct CudaImageInput {
  ImageInput input;
  DType type = DType::f16;
  const std::uint8_t* images = nullptr;
  void* output = nullptr;
};
void cuda_image_input(Stream& stream, const CudaImageInput& arguments);

}  // namespace lockstep
