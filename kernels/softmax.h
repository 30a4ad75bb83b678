// SPDX-License-Identifier: Apache-2.0
//
// Softmax over the channels (or features) of each sample, as a layer inside a network: y[c] = exp(x[c]) / sum
// over channels of exp(x). Tensors are plain, [batch, channels, positions]. The last layer needs none: the
// loss contains its softmax.
#pragma once

#include <cstdint>

#include "core/tensor/dtype.h"

namespace lockstep {

struct SoftmaxShape {
  std::int64_t batch = 0;
  std::int64_t channels = 0;
  std::int64_t positions = 1;  // pixels of an image; each has its own softmax
  DType type = DType::f32;     // arithmetic is fp32, sums are fp64

  // The index of the first channel of a row; rows are numbered from 0, and each has a softmax.
  LOCKSTEP_HOST_DEVICE std::int64_t row_begin(std::int64_t row) const {
    return row / positions * channels * positions + row % positions;
  }
  std::int64_t rows() const { return batch * positions; }
};

struct SoftmaxForward {
  SoftmaxShape shape;
  const void* x = nullptr;
  void* y = nullptr;  // may be x
};

struct SoftmaxBackward {
  SoftmaxShape shape;
  const void* y = nullptr;
  const void* y_gradient = nullptr;
  void* x_gradient = nullptr;  // may be y_gradient
};

}  // namespace lockstep
