// SPDX-License-Identifier: Apache-2.0
//
// Converts a loader's samples, [N, H, W, C] in device memory, to activations: uint8 images are normalised,
// fp32 samples are used unchanged. Training may augment images on the way; the result for an image depends
// only on (key, epoch, sample), not on rank, thread or place in the batch.
#pragma once

#include <cstdint>
#include <span>

#include "core/random.h"
#include "core/sample_id.h"
#include "core/stream.h"
#include "core/tensor/layout.h"
#include "kernels/color_jitter.h"

namespace lockstep {

// torchvision's RandomCrop(size, padding), filled with zeros, and then its RandomHorizontalFlip(). After the
// normalisation, set to zero: cutout (DeVries and Taylor, "Improved Regularization of Convolutional Neural
// Networks with Cutout", 2017) and torchvision's RandomErasing(p) (Zhong et al., "Random Erasing Data
// Augmentation", 2020), a rectangle of 2 % to 33 % of the image, with a height of 0.3 to 3.3 times its width.
struct Augmentation {
  std::int64_t crop_padding = 0;  // width of the black border from which the crop is taken
  bool horizontal_flip = false;   // with probability 1/2
  std::int64_t cutout = 0;        // side of a square around a random pixel, clipped to the image; 0: none
  double random_erasing = 0;      // probability
  // alpha of the Beta distribution of mixing shares (kernels/mixing.h), applied last; 0: none
  double mixup = 0;
  double cutmix = 0;
  ColorJitter color;  // applied to the bytes first, not by ImageInputKernel: see kernels/color_jitter.h
  PhiloxKey key = {};

  bool mixes() const { return mixup > 0 || cutmix > 0; }
  // True if ImageInputKernel has any augmentation to do.
  bool places_or_mixes() const {
    return crop_padding > 0 || horizontal_flip || cutout > 0 || random_erasing > 0 || mixes();
  }
  bool any() const { return places_or_mixes() || color.any(); }
  // True if a part of the augmentation changes the bytes of an image; the host can do that part, too
  // (kernels/host_augmentation.h). behind_bytes() is the remaining augmentation.
  bool changes_bytes() const { return color.any() || crop_padding > 0 || horizontal_flip; }
  Augmentation behind_bytes() const {
    Augmentation rest = *this;
    rest.color = {};
    rest.crop_padding = 0;
    rest.horizontal_flip = false;
    return rest;
  }
};

// The Augmentation::key of a run.
inline PhiloxKey augmentation_key(std::uint64_t seed) { return key_for(seed, "augmentation"); }

// Arguments for mixing images in pairs: [N], in device memory.
struct MixedSamples {
  const float* weights = nullptr;  // samples of weight 0 are not mixed; null: all have 1
  float* shares = nullptr;         // output: the fraction of the sample's own image in its mix
};

struct ImageInput {
  std::int64_t batch = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 0;
  DType source = DType::u8;  // of the samples; f32 samples are neither normalised nor augmented
  // Per channel, for pixels in [0, 1]; empty: mean 0, deviation 1.
  std::span<const float> mean;
  std::span<const float> deviation;
  DType type = DType::f32;  // of the activations, and so of all values computed from them
  Augmentation augmentation;
};

class ImageInputKernel {
 public:
  virtual ~ImageInputKernel() = default;
  // [N, C, H, W]
  const Layout& output() const { return output_; }
  // mixed: required with samples if the augmentation mixes.
  virtual void run(Stream& stream, const void* images, void* output, const SampleId* samples = nullptr,
                   const MixedSamples& mixed = {}) = 0;

 protected:
  Layout output_;
};

}  // namespace lockstep
