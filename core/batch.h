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
  Tensor images;                           // u8 [batch, H, W, C]
  Tensor labels;                           // i32 [batch]
  Tensor weights;                          // f32 [batch]: 1, or 0 for padding and for samples left out
  std::span<const SampleId> samples = {};  // [batch]; zeros where the weight is 0
};

}  // namespace lockstep
