// SPDX-License-Identifier: Apache-2.0
//
// CUDA implementation of the operations of kernels/codec.h.
#pragma once

#include "core/stream.h"
#include "kernels/codec.h"

namespace lockstep {

void cuda_encode_blocks(Stream& stream, const BlockEncode& arguments);
void cuda_sum_blocks(Stream& stream, const BlockSum& arguments);
void cuda_keep_if_finite(Stream& stream, const Keep& arguments);

}  // namespace lockstep
