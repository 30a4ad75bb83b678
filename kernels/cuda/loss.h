// SPDX-License-Identifier: Apache-2.0
//
// SoftmaxCrossEntropy on the device, of logits in fp32 or a half type. Softmax and sums are fp32 and wider;
// sums are taken in a fixed order.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/stream.h"
#include "kernels/loss.h"

namespace lockstep {

// The device cannot throw: a label outside the classes makes the loss NaN.
void cuda_softmax_cross_entropy(Stream& stream, const SoftmaxCrossEntropy& arguments);
std::size_t cuda_loss_scratch_bytes(std::int64_t batch);

}  // namespace lockstep
