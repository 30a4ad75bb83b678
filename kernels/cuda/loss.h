// SPDX-License-Identifier: Apache-2.0
//
// CUDA implementation of SoftmaxCrossEntropy and OutputLoss, for logits in fp32 or a half type. Softmax's
// exponentials are fp32. OutputLoss's arithmetic and all sums are fp64; sums are computed in a fixed order.
#pragma once

#include <cstdint>

#include "core/stream.h"
#include "core/tensor/dtype.h"
#include "kernels/loss.h"

namespace lockstep {

// A device cannot throw: a label outside [0, classes) makes the loss NaN.
void cuda_softmax_cross_entropy(Stream& stream, const SoftmaxCrossEntropy& arguments);
void cuda_output_loss(Stream& stream, const OutputLoss& arguments);
std::size_t cuda_loss_scratch_bytes(std::int64_t batch);

}  // namespace lockstep
