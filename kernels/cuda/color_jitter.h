// SPDX-License-Identifier: Apache-2.0
//
// The operation of kernels/color_jitter.h as a kernel.
#pragma once

#include "core/stream.h"
#include "kernels/color_jitter.h"

namespace lockstep {

void cuda_color_jitter(Stream& stream, const ColorJitterArguments& arguments);

}  // namespace lockstep
