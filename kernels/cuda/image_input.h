// SPDX-License-Identifier: Apache-2.0
//
// Samples from the loader, [N, H, W, C], to NHWC activations in fp32 or a half type. Channels are padded with
// zeros to what tensor cores take: a convolution reads them in whole packs.
#pragma once

#include <array>
#include <cstdint>

#include "core/dtype.h"
#include "core/stream.h"
#include "kernels/backend.h"
#include "kernels/functors.h"
#include "kernels/mixing.h"

namespace lockstep {

inline constexpr std::int64_t kMostImageChannels = 4;
// How many channels the kernels of the type want where a tensor has this many: in 16 bits tensor cores take
// no fewer than 4, and 3 of any type are slower than 4.
constexpr std::int64_t padded_channels(std::int64_t channels, DType type) {
  return channels == 3 || (channels < 4 && size_of(type) == 2) ? 4 : channels;
}

struct CudaImageInput {
  std::int64_t batch = 0;
  int height = 0;
  int width = 0;
  std::int64_t channels = 0;
  DType type = DType::f32;
  DType source = DType::u8;
  Augment augment;
  bool augments = false;
  Mix mix;
  std::array<Normalize, kMostImageChannels> normalize;  // by channel

  // Throws ConfigError for more than kMostImageChannels channels, and for what makes no sense.
  static CudaImageInput from(const ImageInput& input);
  std::int64_t pixels() const { return batch * height * width; }
};

// See ImageInputKernel. images and output are [N, H, W, C] and [N, H, W, padded_channels(C, type)].
void cuda_image_input(Stream& stream, const CudaImageInput& input, const void* images, void* output,
                      const SampleId* samples, const MixedSamples& mixed = {});

}  // namespace lockstep
