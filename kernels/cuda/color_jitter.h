// SPDX-License-Identifier: Apache-2.0
//
// CUDA implementation of the operation of kernels/color_jitter.h.
#pragma once

#include "core/stream.h"
#include "kernels/color_jitter.h"

namespace lockstep {

void cuda_color_jitter(Stream& stream, const ColorJitterArguments& arguments);

}  // namespace lockstep
