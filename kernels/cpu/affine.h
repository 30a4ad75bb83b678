// SPDX-License-Identifier: Apache-2.0
//
// What convolution and linear share on oneDNN: three planned primitives (forward, data gradient, weight
// gradient), each of which may prefer other layouts than the ones its neighbours use; those are brought over
// in scratch memory.
#pragma once

#include <memory>

#include "kernels/affine.h"
#include "kernels/cpu/engine.h"

namespace lockstep {

// One direction as oneDNN planned it: the descriptors it wants.
struct AffineDirection {
  dnnl::primitive primitive;
  dnnl::memory::desc source;
  dnnl::memory::desc weights;
  dnnl::memory::desc destination;
  dnnl::memory::desc scratchpad;
};

struct AffinePlan {
  AffineDirection forward;
  AffineDirection backward_data;
  AffineDirection backward_weights;
  std::int64_t outputs = 0;  // bias elements
  bool bias = false;
  Layout input;
  Shape output_shape;
  Shape weights_shape;
};

std::unique_ptr<AffineKernel> make_onednn_affine(const AffinePlan& plan);

}  // namespace lockstep
