// SPDX-License-Identifier: Apache-2.0
//
// CUDA implementation of layer normalisation. Sums are fp64 and computed in a fixed order.
#pragma once

#include "core/stream.h"
#include "kernels/layer_norm.h"

namespace lockstep {

void cuda_layer_norm_forward(Stream& stream, const LayerNormForward& arguments);
void cuda_layer_norm_backward(Stream& stream, const LayerNormBackward& arguments);

}  // namespace lockstep
