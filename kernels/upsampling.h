// SPDX-License-Identifier: Apache-2.0
//
// Nearest-neighbour upsampling of [N, C, H, W]: each pixel becomes factor x factor equal pixels, as in
// torch.nn.Upsample(scale_factor=factor). Backward sums the gradients of these pixels.
#pragma once

#include <cstdint>

#include "core/tensor/layout.h"

namespace lockstep {

// Memory of the smaller tensor is [outer, height, width, inner], that of the larger one is [outer, height *
// factor, width * factor, inner].
struct UpsamplingShape {
  std::int64_t outer = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t inner = 0;
  std::int64_t factor = 2;
  DType type = DType::f32;  // gradients are summed in fp32

  std::int64_t small_elements() const { return outer * height * width * inner; }
  // The index in the smaller tensor of an element of the larger one, which has index / inner pixels before
  // it.
  LOCKSTEP_HOST_DEVICE std::int64_t source(std::int64_t index) const {
    const std::int64_t pixel = index / inner, row = pixel / (width * factor);
    return (row / factor * width + pixel % (width * factor) / factor) * inner + index % inner;
  }
  // The index in the larger tensor of the first of the elements that come from an element of the smaller one.
  LOCKSTEP_HOST_DEVICE std::int64_t first(std::int64_t index) const {
    const std::int64_t pixel = index / inner;
    return (pixel / width * factor * width + pixel % width) * factor * inner + index % inner;
  }
};

struct UpsamplingPlan {
  Layout input;  // the layout that the input must have
  Layout output;
  UpsamplingShape shape;
};

struct UpsamplingForward {
  UpsamplingShape shape;
  const void* x = nullptr;
  void* y = nullptr;
};

struct UpsamplingBackward {
  UpsamplingShape shape;
  const void* y_gradient = nullptr;
  void* x_gradient = nullptr;
};

}  // namespace lockstep
