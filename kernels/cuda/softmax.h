// SPDX-License-Identifier: Apache-2.0
//
// CUDA implementation of softmax inside a network.
#pragma once

#include "core/stream.h"
#include "kernels/softmax.h"

namespace lockstep {

void cuda_softmax_forward(Stream& stream, const SoftmaxForward& arguments);
void cuda_softmax_backward(Stream& stream, const SoftmaxBackward& arguments);

}  // namespace lockstep
