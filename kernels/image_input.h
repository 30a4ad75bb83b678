// SPDX-License-Identifier: Apache-2.0
//
// Samples as the loader delivers them, [N, H, W, C] in device memory, to activations: images of uint8 are
// normalised, and what comes in fp32 is taken as it is. Training may augment images on the way: what happens
// to one depends on (key, epoch, sample) and on no rank, thread or place in a batch.
#pragma once

#include <cstdint>
#include <span>

#include "core/layout.h"
#include "core/random.h"
#include "core/sample_id.h"
#include "core/stream.h"
#include "kernels/color_jitter.h"

namespace lockstep {

// torchvision's RandomCrop(size, padding), filled with zeros, and then its RandomHorizontalFlip(). Behind the
// normalisation, as zeros: cutout (DeVries and Taylor, "Improved Regularization of Convolutional Neural
// Networks with Cutout", 2017) and torchvision's RandomErasing(p) (Zhong et al., "Random Erasing Data
// Augmentation", 2020), a rectangle of 2 % to 33 % of the image, from 0.3 to 3.3 times as high as wide.
struct Augmentation {
  std::int64_t crop_padding = 0;  // black pixels around the image, out of which a window of its size is cut
  bool horizontal_flip = false;   // left and right are swapped, in half of the cases
  std::int64_t cutout = 0;        // side of a square about any pixel, as far as it lies in the image; 0: none
  double random_erasing = 0;      // in so many of the cases
  // alpha of the Beta distribution that shares are drawn from (kernels/mixing.h), behind all else; 0: none
  double mixup = 0;
  double cutmix = 0;
  ColorJitter color;  // of the bytes, before all else: not the kernel's below, see kernels/color_jitter.h
  PhiloxKey key = {};

  bool mixes() const { return mixup > 0 || cutmix > 0; }
  // Of what ImageInputKernel does.
  bool places_or_mixes() const {
    return crop_padding > 0 || horizontal_flip || cutout > 0 || random_erasing > 0 || mixes();
  }
  bool any() const { return places_or_mixes() || color.any(); }
  // Whether a part of it changes the bytes of an image, which the host can do, too
  // (kernels/host_augmentation.h); and what is left without that.
  bool changes_bytes() const { return color.any() || crop_padding > 0 || horizontal_flip; }
  Augmentation behind_bytes() const {
    Augmentation rest = *this;
    rest.color = {};
    rest.crop_padding = 0;
    rest.horizontal_flip = false;
    return rest;
  }
};

// Augmentation::key of a run.
inline PhiloxKey augmentation_key(std::uint64_t seed) { return key_for(seed, "augmentation"); }

// Of images that are mixed with each other: [N], in device memory.
struct MixedSamples {
  const float* weights = nullptr;  // what has weight 0 is mixed with nothing; null: all have 1
  float* shares = nullptr;         // of each sample in its own image: the rest is its partner's
};

struct ImageInput {
  std::int64_t batch = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 0;
  DType source = DType::u8;  // of the samples; or f32, which is neither normalised nor augmented
  // Per channel, on the scale where pixels are in [0, 1]; empty: mean 0, deviation 1.
  std::span<const float> mean;
  std::span<const float> deviation;
  DType type = DType::f32;  // of the activations, and so of everything that is computed from them
  Augmentation augmentation;
};

class ImageInputKernel {
 public:
  virtual ~ImageInputKernel() = default;
  // [N, C, H, W]
  const Layout& output() const { return output_; }
  // samples: [N], in device memory; null: images are not augmented.
  // mixed: with samples, where the augmentation mixes.
  virtual void run(Stream& stream, const void* images, void* output, const SampleId* samples = nullptr,
                   const MixedSamples& mixed = {}) = 0;

 protected:
  Layout output_;
};

}  // namespace lockstep
