// SPDX-License-Identifier: Apache-2.0
//
// CUDA implementation of upsampling, concatenation and the targets of pixels.
#pragma once

#include "core/stream.h"
#include "kernels/concatenation.h"
#include "kernels/pixel_targets.h"
#include "kernels/upsampling.h"

namespace lockstep {

void cuda_upsample_forward(Stream& stream, const UpsamplingForward& arguments);
void cuda_upsample_backward(Stream& stream, const UpsamplingBackward& arguments);
void cuda_concatenate(Stream& stream, const Concatenation& arguments);
void cuda_separate(Stream& stream, const Separation& arguments);
void cuda_pixel_targets(Stream& stream, const PixelTargets& arguments);

}  // namespace lockstep
