// SPDX-License-Identifier: Apache-2.0
//
// Batch: one micro-batch as loaders give it and networks take it. A view: the memory is a loader's, or a copy
// in a device's memory.
#pragma once

#include <span>

#include "core/sample_id.h"
#include "core/tensor.h"

namespace lockstep {

struct Batch {
  Tensor images;  // u8 [batch, H, W, C]; f32 where samples are no images
  Tensor labels;  // i32 [batch]
  // f32 [batch]: 1, or 0 for padding and for samples left out. In a short global batch (Tail::exact) more
  // than 1, so that a sum over all places divided by their number is the mean over its samples.
  Tensor weights;
  std::span<const SampleId> samples = {};  // [batch]; zeros where a place has no sample
  // i32 [batch], where images are not part of a batch but of a set that lies in the device's memory
  // (Dataset::on_device()): which of them, or -1 for a black one. images.data is null then.
  Tensor rows = {};
};

}  // namespace lockstep
