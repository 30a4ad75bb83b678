// SPDX-License-Identifier: Apache-2.0
//
// Inverted dropout (Srivastava et al., 2014) with a mask that is recomputed instead of stored: a random
// number of (key, epoch, sample, index within the sample) decides whether an element is dropped. Backward
// recomputes it, and the mask does not depend on rank, thread or place in the batch.
#pragma once

#include <cstdint>

#include "core/random.h"
#include "core/sample_id.h"
#include "core/tensor/dtype.h"

namespace lockstep {

// y = x / (1 - probability) for kept elements, 0 for dropped ones. Applied to gradients it is the backward.
struct DropoutArguments {
  std::int64_t batch = 0;
  std::int64_t features = 0;          // of each sample
  const SampleId* samples = nullptr;  // [batch], in device memory
  PhiloxKey key = {};
  float probability = 0;  // in [0, 1)
  DType type = DType::f32;
  const void* x = nullptr;  // [batch, features], plain
  void* y = nullptr;        // may alias x
};

}  // namespace lockstep
