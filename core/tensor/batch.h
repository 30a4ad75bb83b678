// SPDX-License-Identifier: Apache-2.0
//
// Batch: one micro-batch, from a loader to a network. A view: the memory belongs to the loader or is a copy
// in the device's memory.
#pragma once

#include <span>

#include "core/sample_id.h"
#include "core/tensor/tensor.h"

namespace lockstep {

struct Batch {
  Tensor images;  // u8 [batch, H, W, C]; f32 if samples are not images
  // i32 [batch]; or, if each pixel has a label, u8 [batch, H, W]: classes, or kIgnoredPixel
  // (kernels/pixel_targets.h).
  Tensor labels;
  // f32 [batch]: 1, or 0 for padding and for samples left out. In a short global batch (Tail::exact) the
  // weights are above 1, so that the sum over all places divided by the number of places is the mean over its
  // samples.
  Tensor weights;
  std::span<const SampleId> samples = {};  // [batch]; zeros for places without a sample
  // i32 [batch], set if images lie in the device's memory (Dataset::on_device()) instead of in the batch: the
  // index of each image, or -1 for a black one. images.data is null then.
  Tensor rows = {};
};

}  // namespace lockstep
