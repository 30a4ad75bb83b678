// SPDX-License-Identifier: Apache-2.0
//
// Converts samples from the loader, [N, H, W, C], to NHWC activations in fp32 or a half type. Channels are
// padded with zeros to a number that tensor cores support, so that a convolution reads whole packs.
#pragma once

#include <array>
#include <cstdint>

#include "core/stream.h"
#include "core/tensor/dtype.h"
#include "kernels/backend.h"
#include "kernels/functors.h"
#include "kernels/mixing.h"

namespace lockstep {

inline constexpr std::int64_t kMostImageChannels = 4;
// The number of channels that a tensor with `channels` channels has in memory: in 16-bit types tensor cores
// need at least 4, and in every type 3 channels are slower than 4.
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

  // Throws ConfigError for more than kMostImageChannels channels and for invalid settings.
  static CudaImageInput from(const ImageInput& input);
  std::int64_t pixels() const { return batch * height * width; }
};

// See ImageInputKernel. images and output are [N, H, W, C] and [N, H, W, padded_channels(C, type)].
void cuda_image_input(Stream& stream, const CudaImageInput& input, const void* images, void* output,
                      const SampleId* samples, const MixedSamples& mixed = {});

}  // namespace lockstep
